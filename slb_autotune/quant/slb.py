"""Searching for low-bit weights: the layers (paper, section 3.2).

    V   = 2**q values, uniform on [-1, 1]
    P_i = softmax_i(T A)                         (eq_prob; T = 1/tau)
    W_c = sum_i P_i v_i                          (eq:wc), used in training
    W_q = v_k, k = argmax_i P_i                  (eq:wq), used at inference

How W_c and its gradient are computed is in `expectation.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from slb_autotune.errors import ConfigError
from slb_autotune.quant.expectation import argmax_codes, expected_weight, working_dtype
from slb_autotune.quant.layers import Convolution, LowBitLayer, Matrix, Stored, check_bits
from slb_autotune.quant.states import Annealed
from slb_autotune.quant.values import best_scale, value_set, values_at

# torch.fx records these as they are: it cannot follow branches on the shape of A.
for _name in ("argmax_codes", "expected_weight", "values_at"):
    torch.fx.wrap(_name)


def kaiming_logits(shape: Sequence[int], fan_in: int, spread: float | None = None) -> Tensor:
    """A drawn kaiming-normal for each of its m slices: std = sqrt(2 / fan_in).

    `kaiming_normal_` on the whole tensor would take the fan of the wrong dimensions and make A
    (and with it T_e) several times too small.
    """
    std = math.sqrt(2.0 / fan_in) if spread is None else spread
    return torch.randn(tuple(shape)) * std


def logits_from_weight(weight: Tensor, bits: int, spread: float) -> Tensor:
    """A whose argmax is the value nearest to the scaled weight, with standard deviation `spread`.

    A_i falls with the squared distance between v_i and weight / s, where s is the scale that
    brings the values nearest to the weights.
    """
    precise = weight.detach().cpu().double()
    values = value_set(bits, torch.float64)
    scaled = precise / (best_scale(precise, bits) or 1.0)
    # Not centred: near its maximum A is near 0, where floats are dense and no tie arises.
    A = (scaled.unsqueeze(0) - values.view(-1, *[1] * weight.dim())).square().neg_()
    return A * (spread / A.std().clamp_min(1e-12))


class SLBLayer(LowBitLayer, Annealed):
    """What SLBConv2d and SLBLinear share: A for a weight of any shape.

    `logits` is A, `values` V, `temperature` T. No weight is cached: W_c and W_q are computed from
    A in every forward pass.
    """

    values: Tensor
    T: Tensor
    soft = True

    def __init__(
        self, weight_shape: tuple[int, ...], bits: int, bias: bool, spread: float | None = None
    ) -> None:
        check_bits("slb", bits)
        super().__init__(weight_shape, bits, bias)
        fan_in = math.prod(weight_shape[1:])
        self.logits = nn.Parameter(kaiming_logits((2**bits, *weight_shape), fan_in, spread))
        self._temperature = 1.0
        self.register_buffer("values", None, persistent=False)
        self.register_buffer("T", None, persistent=False)
        self._set_constants()

    def _set_constants(self) -> None:
        """V and T on the device of A, rounded once: `double()` alone would keep float32's digits.

        T is a tensor, and not a number, so that a compiled forward pass is not bound to its value.
        """
        A = self.logits
        self.values = value_set(self.bits, A.dtype, A.device)
        self.T = torch.tensor(self._temperature, dtype=working_dtype(A), device=A.device)

    @property
    def temperature(self) -> float:
        """T, the inverse temperature: that of the buffer, which copies of a network may set."""
        if self.T is None or self.T.is_meta:
            return self._temperature
        T = float(self.T)
        # The digits that were given, where the buffer holds them as far as its precision goes.
        same = float(torch.tensor(self._temperature, dtype=self.T.dtype)) == T
        return self._temperature if same else T

    @temperature.setter
    def temperature(self, T: float) -> None:
        self._temperature = float(T)
        if self.T.is_inference():  # of a copy under inference mode, which cannot be changed
            self.T = torch.full_like(self.T, T)
        self.T.fill_(T)

    @property
    def weight(self) -> Tensor:
        """The weight in use, W_c or W_q: computed from A, not a parameter."""
        return self.quantized_weight() if self.is_discrete else self.continuous_weight()

    def continuous_weight(self) -> Tensor:
        """W_c, differentiable in A."""
        return expected_weight(self.logits, self.values, self.T)

    def codes(self) -> Tensor:
        """The index of W_q in V, as uint8."""
        return argmax_codes(self.logits.detach())

    def quantized_weight(self) -> Tensor:
        """W_q: for every position the value of the largest probability."""
        return values_at(self.codes(), self.values)

    def stored(self) -> dict[str, Tensor]:
        """Nothing: V is known from the bits, and there is no scale factor."""
        return {}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """v_k for every code k."""
        return values_at(codes, value_set(self.bits, self.logits.dtype, codes.device))

    @property
    def trained(self) -> nn.Parameter:
        """A."""
        return self.logits

    def reset_parameters(self) -> None:
        """Draw A again, kaiming-normal, and set the bias to 0."""
        with torch.no_grad():
            fan_in = self.weight_shape[1:].numel()
            self.logits.copy_(kaiming_logits(self.logits.shape, fan_in))
            if self.bias is not None:
                self.bias.zero_()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SLBLayer:
        """Move A as a tensor of four dimensions, and set V and T for its new device and dtype.

        `to(memory_format=torch.channels_last)` refuses five dimensions. It reaches a layer inside
        a network through this private method alone, as `double()` and `to_empty()` do: torch
        offers no public hook.
        """

        def moved(tensor: Tensor) -> Tensor:
            if tensor.dim() != 5:
                return fn(tensor)
            return fn(tensor.flatten(0, 1)).contiguous().unflatten(0, tensor.shape[:2])

        self._temperature = self.temperature  # before the buffer is rounded to another precision
        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        self._set_constants()
        return self


# The attributes of torch's layers are declared more loosely there, and `weight` as writable.
class SLBConv2d(Convolution, SLBLayer, nn.Conv2d):  # type: ignore[misc, override]
    """A 2-D convolution whose weights are searched among 2**bits values.

    It is an nn.Conv2d whose `weight` is computed, as torch's parametrisations make one; its
    parameters are `logits` and, where there is one, `bias`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        groups: int = 1,
        bits: int = 1,
        *,
        dilation: int | tuple[int, int] = 1,
        bias: bool = False,
        spread: float | None = None,
    ) -> None:
        if in_channels % groups or out_channels % groups:
            raise ConfigError(
                f"groups must divide the channels; got {in_channels}, {out_channels} and {groups}"
            )
        kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
        SLBLayer.__init__(self, (out_channels, in_channels // groups, *kernel), bits, bias, spread)
        self.set_geometry(kernel, stride, padding, dilation, groups)


class SLBLinear(Matrix, SLBLayer, nn.Linear):  # type: ignore[misc, override]
    """A linear layer whose weights are searched among 2**bits values.

    It is an nn.Linear whose `weight` is computed; its parameters are `logits` and `bias`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bits: int = 1,
        *,
        bias: bool = True,
        spread: float | None = None,
    ) -> None:
        SLBLayer.__init__(self, (out_features, in_features), bits, bias, spread)
        self.in_features, self.out_features = in_features, out_features


def from_float(
    layer: nn.Conv2d | nn.Linear, bits: int, *, keep_weights: bool, spread: float | None
) -> SLBLayer:
    """The SLB form of a float layer; with `keep_weights` A starts around its weights."""
    new: SLBLayer
    bias = layer.bias is not None
    if isinstance(layer, nn.Conv2d):
        new = SLBConv2d(
            layer.in_channels,
            layer.out_channels,
            cast(tuple[int, int], layer.kernel_size),
            cast(tuple[int, int], layer.stride),
            cast("tuple[int, int] | str", layer.padding),
            layer.groups,
            bits,
            dilation=cast(tuple[int, int], layer.dilation),
            bias=bias,
            spread=spread,
        )
    else:
        new = SLBLinear(layer.in_features, layer.out_features, bits, bias=bias, spread=spread)
    new = new.to(device=layer.weight.device, dtype=layer.weight.dtype)
    with torch.no_grad():
        if keep_weights:
            std = math.sqrt(2.0 / layer.weight[0].numel()) if spread is None else spread
            new.logits.copy_(logits_from_weight(layer.weight, bits, std))
        if new.bias is not None and layer.bias is not None:
            new.bias.copy_(layer.bias)
    return new
