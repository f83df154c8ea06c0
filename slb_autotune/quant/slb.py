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
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from slb_autotune.errors import ConfigError
from slb_autotune.quant.expectation import (
    argmax_codes,
    expected_weight,
    expected_weights,
    value_set,
)
from slb_autotune.quant.layers import Convolution, LowBitLayer, Matrix, Stored, check_bits
from slb_autotune.quant.states import Annealed

# Fused optimisers change parameters without raising their version, so steps are counted: a cached
# W_q holds until the next step of any optimiser.
_steps = 0


def _count_step(*_: object) -> None:
    global _steps
    _steps += 1


register_optimizer_step_post_hook(_count_step)


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
    weight = weight.detach().double()
    values = value_set(bits).to(weight)
    scaled = weight / _best_scale(weight, values)
    # Not centred: near its maximum A is near 0, where floats are dense and no tie is made.
    A = (scaled.unsqueeze(0) - values.view(-1, *[1] * weight.dim())).square().neg_()
    return A * (spread / A.std().clamp_min(1e-12))


def _best_scale(weight: Tensor, values: Tensor) -> Tensor:
    """The scale s with the least squared error of s Q(weight / s), from 80 candidates."""
    largest = weight.abs().max()
    if float(largest) == 0.0:
        return torch.ones((), dtype=weight.dtype, device=weight.device)
    step = 2.0 / (len(values) - 1)
    candidates = [largest * k / 80 for k in range(1, 81)]

    def error(scale: Tensor) -> float:
        rounded = ((weight / scale + 1) / step).round_().clamp_(0, len(values) - 1) * step - 1
        return float((rounded * scale - weight).square_().mean())

    return min(candidates, key=error)


@dataclass(frozen=True)
class _Made:
    """A weight, and what A was when it was made; holding A keeps its address from being reused."""

    key: tuple[object, ...]
    A: Tensor
    weight: Tensor


class SLBLayer(LowBitLayer, Annealed):
    """What SLBConv2d and SLBLinear share: A for a weight of any shape.

    `logits` is A, `values` V, `temperature` T. W_q is cached in eval mode; the cache is tied to
    A's storage and version and to the optimisers' steps, so every change of A is seen, save one
    written in place through `.data`.
    """

    values: Tensor
    soft = True

    def __init__(
        self, weight_shape: tuple[int, ...], bits: int, bias: bool, spread: float | None = None
    ) -> None:
        check_bits("slb", bits)
        super().__init__(weight_shape, bits, bias)
        fan_in = math.prod(weight_shape[1:])
        self.logits = nn.Parameter(kaiming_logits((2**bits, *weight_shape), fan_in, spread))
        self.register_buffer("values", value_set(bits), persistent=False)
        self._cache: _Made | None = None
        self._prepared: _Made | None = None

    def continuous_weight(self) -> Tensor:
        """W_c, differentiable in A; the one that `prepare_weights` made serves once."""
        made, self._prepared = self._prepared, None
        if made is not None and made.key == (self._key(), self.temperature):
            return made.weight
        return expected_weight(self.logits, self.values, self.temperature)

    def prepare(self, weight: Tensor) -> None:
        """Take W_c, made elsewhere, for the next forward pass."""
        self._prepared = _Made((self._key(), self.temperature), self.logits.detach(), weight)

    def _key(self) -> tuple[object, ...]:
        """What A is now."""
        A = self.logits
        return A.data_ptr(), A._version, A.dtype, A.device, _steps

    def codes(self) -> Tensor:
        """The index of W_q in V, as uint8."""
        return argmax_codes(self.logits.detach())

    def quantized_weight(self) -> Tensor:
        """W_q: for every position the value of the largest probability."""
        if self.training or self.logits.is_inference():
            return self._make_quantized_weight()
        key = self._key()
        if self._cache is None or self._cache.key != key:
            self._cache = _Made(key, self.logits.detach(), self._make_quantized_weight())
        return self._cache.weight

    def _make_quantized_weight(self) -> Tensor:
        return self.decode(self.codes(), {}).to(self.logits.dtype)

    def stored(self) -> dict[str, Tensor]:
        """Nothing: V is known from the bits, and there is no scale factor."""
        return {}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """v_k for every code k."""
        dtype = torch.get_default_dtype()
        if self.bits == 1:
            return codes.to(dtype).mul_(2).sub_(1)
        return value_set(self.bits).to(codes.device)[codes.int()]

    @property
    def trained(self) -> nn.Parameter:
        """A."""
        return self.logits

    def train(self, mode: bool = True) -> SLBLayer:
        """Set the mode; what was made before does not outlive it."""
        self._cache = self._prepared = None
        super().train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SLBLayer:
        """Move A as four dimensions, for which alone `to(memory_format=channels_last)` is made.

        Its order in memory stays as it was.
        """

        def moved(tensor: Tensor) -> Tensor:
            if tensor.dim() != 5:
                return fn(tensor)
            return fn(tensor.flatten(0, 1)).contiguous().unflatten(0, tensor.shape[:2])

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None, "_prepared": None}


def prepare_weights(network: nn.Module) -> None:
    """Make W_c of all SLB layers at once, for the forward pass of a training step that follows.

    A step is right without it. With it a network of many small layers is a few percent faster on
    a CPU, and on a GPU it starts fewer kernels.
    """
    if not torch.is_grad_enabled():
        return
    kinds: dict[tuple[object, ...], list[SLBLayer]] = {}
    for layer in network.modules():
        if isinstance(layer, SLBLayer) and layer.training and layer.logits.requires_grad:
            A = layer.logits
            kind = (layer.bits, layer.temperature, A.dtype, A.device)
            kinds.setdefault(kind, []).append(layer)
    for layers in kinds.values():
        first = layers[0]
        logits = [layer.logits for layer in layers]
        made = expected_weights(logits, first.values, first.temperature)
        for layer, weight in zip(layers, made, strict=True):
            layer.prepare(weight)


class SLBConv2d(Convolution, SLBLayer):
    """A 2-D convolution whose weights are searched among 2**bits values."""

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
        super().__init__((out_channels, in_channels // groups, *kernel), bits, bias, spread)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.set_geometry(kernel, stride, padding, dilation, groups)


class SLBLinear(Matrix, SLBLayer):
    """A linear layer whose weights are searched among 2**bits values."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bits: int = 1,
        *,
        bias: bool = True,
        spread: float | None = None,
    ) -> None:
        super().__init__((out_features, in_features), bits, bias, spread)
        self.in_features, self.out_features = in_features, out_features


def from_float(
    layer: nn.Conv2d | nn.Linear, bits: int, *, keep_weights: bool, spread: float | None
) -> SLBLayer:
    """The SLB form of a float layer; A starts around its weights where `keep_weights` says so."""
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
    with torch.no_grad():
        if keep_weights:
            std = math.sqrt(2.0 / layer.weight[0].numel()) if spread is None else spread
            new.logits.copy_(logits_from_weight(layer.weight, bits, std))
        if new.bias is not None and layer.bias is not None:
            new.bias.copy_(layer.bias)
    return new.to(device=layer.weight.device, dtype=layer.weight.dtype)
