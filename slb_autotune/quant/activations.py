"""Quantisers of activations: each rounds to a few levels and passes a gradient straight through.

They are applied to the input of a quantised layer. 32 bits means none.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from slb_autotune.config.methods import ACTIVATIONS
from slb_autotune.errors import ConfigError

# torch.fx records these as they are: it cannot follow an autograd function.
for _name in ("round_unit", "round_clipped", "bireal_sign"):
    torch.fx.wrap(_name)


class _RoundUnit(Function):
    """q(x) = round(n clip(x, 0, 1)) / n; dq/dx = 1 inside [0, 1], 0 outside."""

    @staticmethod
    def forward(x: Tensor, levels: int) -> Tensor:
        return x.clamp(0, 1).mul_(levels).round_().div_(levels)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * ((x >= 0) & (x <= 1)), None


class _RoundClipped(Function):
    """q(x) = (alpha / n) round(n clip(x, 0, alpha) / alpha).

    dq/dx = 1 inside [0, alpha), 0 outside; dq/dalpha = 1 at and above alpha, 0 below.
    """

    @staticmethod
    def forward(x: Tensor, alpha: Tensor, levels: int) -> Tensor:
        return x.div(alpha).clamp_(0, 1).mul_(levels).round_().mul_(alpha / levels)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, alpha = ctx.saved_tensors
        above = x >= alpha
        to_alpha = (grads[0] * above).sum().reshape(alpha.shape).to(alpha.dtype)
        return grads[0] * ((x >= 0) & ~above), to_alpha, None


class _BiRealSign(Function):
    """sign(x) in {-1, 1}; d/dx = 2 - 2|x| for |x| < 1, 0 outside."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * (2 - 2 * x.abs()).clamp_(min=0)


def round_unit(x: Tensor, levels: int) -> Tensor:
    """q(x) = round(n clip(x, 0, 1)) / n for `levels` n."""
    return _RoundUnit.apply(x, levels)  # type: ignore[no-untyped-call]


def round_clipped(x: Tensor, alpha: Tensor, levels: int) -> Tensor:
    """q(x) = (alpha / n) round(n clip(x, 0, alpha) / alpha) for `levels` n."""
    return _RoundClipped.apply(x, alpha, levels)  # type: ignore[no-untyped-call]


def bireal_sign(x: Tensor) -> Tensor:
    """sign(x) with the gradient of Bi-Real Net."""
    return _BiRealSign.apply(x)  # type: ignore[no-untyped-call]


class DoReFa(nn.Module):
    """Activations of "DoReFa-Net" (Zhou et al., 2016).

    q(x) = round(n clip(x, 0, 1)) / n with n = 2**bits - 1.
    """

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits

    def forward(self, x: Tensor) -> Tensor:
        """Quantise `x`."""
        return round_unit(x, 2**self.bits - 1)

    def extra_repr(self) -> str:
        """Show the bits."""
        return f"bits={self.bits}"


class Pact(nn.Module):
    """ "PACT: Parameterized Clipping Activation" (Choi et al., 2018), one learned alpha per layer.

    y = clip(x, 0, alpha), rounded to 2**k levels on [0, alpha]. alpha starts at 10, as published,
    and at 2 for 1 bit, which the paper does not have: there 10 would round all of a normalised
    input to 0, and nothing would ever learn.
    """

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits
        self.alpha = nn.Parameter(torch.tensor([2.0 if bits == 1 else 10.0]))

    def forward(self, x: Tensor) -> Tensor:
        """Quantise `x`."""
        return round_clipped(x, self.alpha, 2**self.bits - 1)

    def extra_repr(self) -> str:
        """Show the bits."""
        return f"bits={self.bits}"


class BiRealSign(nn.Module):
    """Sign with the piecewise-linear gradient of "Bi-Real Net" (Liu et al., 2018); sign(0) = 1."""

    def __init__(self, bits: int = 1) -> None:
        super().__init__()
        if bits != 1:
            raise ConfigError(f"sign has 1 bit; got {bits}", "use dorefa or pact for more bits.")
        self.bits = bits

    def forward(self, x: Tensor) -> Tensor:
        """Quantise `x`."""
        return bireal_sign(x)


def activation_quantizer(name: str | None, bits: int) -> nn.Module | None:
    """The quantiser `name` at `bits`, or None at 32 bits."""
    if bits == 32:
        return None
    if name is None:
        raise ConfigError(
            f"this method leaves activations float; got activation_bits {bits}",
            "name a quantiser: activation: dorefa, for one.",
        )
    entry = ACTIVATIONS[name]
    allowed = entry.details["activation_bits"]
    if bits not in allowed:
        raise ConfigError(f"activation_bits of {name} must be one of {allowed} or 32; got {bits}")
    return cast(nn.Module, entry.load()(bits))
