"""What every low-bit layer shares, whatever its method.

A layer quantises its input, multiplies it by the continuous or the low-bit weight, depending on
its state, and may have a BN or a scale of its own. The method defines the low-bit weight: SLB
searches it (`slb.py`), the rivals round a float weight (`rivals/`).

At inference a layer is its codes, `bits` bits per weight, and the few float numbers of `stored()`;
`decode` turns these into the weight. The trained layer and the packed file share that function,
so that their predictions are bit-identical.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slb_autotune.config.methods import METHODS
from slb_autotune.errors import ConfigError
from slb_autotune.quant.state_norm import StateBatchNorm2d
from slb_autotune.quant.states import TwoState

Stored = Mapping[str, Tensor]


@dataclass(frozen=True)
class NormLink:
    """The state BN that a layer feeds, and the element-wise steps between the two."""

    norm: StateBatchNorm2d
    between: tuple[Callable[[Tensor], Tensor], ...] = ()


class LowBitLayer(TwoState):
    """The forward pass of every low-bit layer.

    `soft` is true where the weight of training differs from that of inference: only then are there
    two sets of BN statistics, and metrics that end in `_continuous`.
    """

    bits: int
    bias_shape: tuple[int, ...]  # in which the bias broadcasts over an output
    soft: bool = False

    def __init__(self, weight_shape: tuple[int, ...], bits: int, bias: bool) -> None:
        nn.Module.__init__(self)  # not nn.Conv2d's or nn.Linear's, which create a weight
        self.weight_shape = torch.Size(weight_shape)
        self.bits = bits
        self.bias = nn.Parameter(torch.zeros(weight_shape[0])) if bias else None
        self.activation: nn.Module | None = None
        self.norm: StateBatchNorm2d | None = None
        self.output_scale: nn.Parameter | None = None
        self.link: NormLink | None = None

    def continuous_weight(self) -> Tensor:
        """The weight of training, differentiable."""
        raise NotImplementedError

    def quantized_weight(self) -> Tensor:
        """The weight of inference."""
        raise NotImplementedError

    def codes(self) -> Tensor:
        """The weight of inference as indices, uint8, each below 2**bits."""
        raise NotImplementedError

    def stored(self) -> dict[str, Tensor]:
        """The float numbers that inference needs to turn codes into weights."""
        raise NotImplementedError

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """The weight of inference, from what a packed file holds."""
        raise NotImplementedError

    @property
    def trained(self) -> nn.Parameter:
        """The parameter that is optimised in place of the weight."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output with the continuous or the low-bit weight, depending on the state."""
        quantised = x if self.activation is None else self.activation(x)
        weight = self.quantized_weight() if self.is_discrete else self.continuous_weight()
        y = self._output(x, quantised, weight)
        if self.link is not None and self.training and self.link.norm.wants_discrete:
            self._observe_discrete(x.detach(), quantised.detach(), self.link)
        if self.output_scale is not None:
            y = y * self.output_scale
        return y if self.norm is None else self.norm(y)

    def _output(self, x: Tensor, quantised: Tensor, weight: Tensor) -> Tensor:
        """The product with the weight; XNOR-Net's input scale multiplies it, before the bias."""
        factor = getattr(self.activation, "output_factor", None)
        if factor is None:
            return self._linear(quantised, weight, self.bias)
        y = self._linear(quantised, weight, None) * factor(x, self)
        return y if self.bias is None else y + self.bias.view(self.bias_shape)

    @torch.no_grad()
    def _observe_discrete(self, x: Tensor, quantised: Tensor, link: NormLink) -> None:
        """eq_bnd: y_q = x (*) W_q on the same x, observed by the state BN; no gradient."""
        y_q = self._output(x, quantised, self.quantized_weight())
        for step in link.between:
            y_q = step(y_q)
        link.norm.observe(y_q)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError


class Convolution(nn.Module):
    """The part of a layer that makes it a 2-D convolution."""

    weight_shape: torch.Size
    bits: int
    bias_shape: tuple[int, ...] = (-1, 1, 1)

    def set_geometry(
        self,
        kernel_size: tuple[int, int],
        stride: int | tuple[int, int],
        padding: int | tuple[int, int] | str,
        dilation: int | tuple[int, int],
        groups: int,
    ) -> None:
        """Set what nn.Conv2d has as attributes, pairs of numbers as it has them."""
        self.in_channels, self.out_channels = self.weight_shape[1] * groups, self.weight_shape[0]
        self.kernel_size, self.stride, self.dilation = kernel_size, _pair(stride), _pair(dilation)
        self.padding = padding if isinstance(padding, str) else _pair(padding)
        self.groups, self.padding_mode = groups, "zeros"
        self.transposed, self.output_padding = False, (0, 0)

    def geometry_of(self, layer: Any) -> None:
        """Take the geometry of `layer`."""
        self.set_geometry(
            layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups
        )

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        """Show shape and bits."""
        out, inner, *_ = self.weight_shape
        return (
            f"{inner * self.groups}, {out}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, groups={self.groups}, bits={self.bits}"
        )


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


class Matrix(nn.Module):
    """The part of a layer that makes it a linear one."""

    weight_shape: torch.Size
    bits: int
    bias_shape: tuple[int, ...] = (-1,)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def extra_repr(self) -> str:
        """Show shape and bits."""
        out, inner = self.weight_shape
        return f"{inner}, {out}, bits={self.bits}"


def low_bit_layers(network: nn.Module) -> dict[str, LowBitLayer]:
    """Name -> low-bit layer."""
    return {
        name: module for name, module in network.named_modules() if isinstance(module, LowBitLayer)
    }


def check_bits(method: str, bits: int) -> None:
    """Raise for a bit-width that the method does not support."""
    allowed = METHODS[method].details["weight_bits"]
    if bits not in allowed:
        raise ConfigError(f"weight_bits of {method} must be one of {allowed}; got {bits}")
