""" "Forward and Backward Information Retention for Accurate Binary Neural Networks"
(Qin et al., 2020): IR-Net.

Its gradient estimator, EDE, puts g(x) = k tanh(t x) in the place of sign(x), in the backward pass
only:

    g'(x) = k t (1 - tanh(t x)**2),  t = T_min (T_max / T_min)**progress,  k = max(1 / t, 1)

with T_min = 0.1 and T_max = 10: nearly the identity at first, nearly the sign at the end.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from slb_autotune.quant.layers import Stored
from slb_autotune.quant.rivals.base import WeightQuantizer, filter_shape, sign, sign_codes, signs
from slb_autotune.quant.states import Annealed

T_MIN, T_MAX = 0.1, 10.0
LEAST_VARIANCE = 1e-10  # a filter whose weights are all alike has none to divide by


class IrNetWeight(WeightQuantizer):
    """Libra-PB: W_b = 2**s sign(Z) with Z = (W - mean(W)) / std(W) and s = round(log2 mean |Z|),
    all over a filter.

    With G the gradient of W_b and v = 2**s G g'(Z):

        dL/dW = (v - mean(v) - Z mean(v Z)) / std(W)

    that is, the gradient goes through mean and std, as in the authors' program, and s is a
    constant. std divides by the count of weights and not, as that program does, by one less:
    a filter may have one weight. Z is 0 then, and s here 0.
    """

    def forward(self, weight: Tensor) -> Tensor:
        """2**s sign(Z)."""
        standard = _standardised(weight)
        return _shift(standard.detach()) * ede_sign(standard, self.progress)

    def codes(self, weight: Tensor) -> Tensor:
        """1 for +, 0 for -."""
        return sign_codes(_standardised(weight))

    def stored(self, weight: Tensor) -> dict[str, Tensor]:
        """2**s of every filter."""
        return {"scale": _shift(_standardised(weight)).flatten()}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """-2**s or 2**s."""
        scale = stored["scale"]
        return scale.view(filter_shape(codes)) * signs(codes, scale)


class EdeSign(Annealed):
    """Activations of IR-Net: sign(x) with the gradient of EDE."""

    def __init__(self, bits: int = 1) -> None:
        super().__init__()
        self.bits = bits

    def forward(self, x: Tensor) -> Tensor:
        """Quantise `x`."""
        return ede_sign(x, self.progress)


class _EdeSign(Function):
    """sign(x) in {-1, 1}; d/dx = g'(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, progress: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.progress = progress
        return sign(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return ede_slope(x, ctx.progress).mul_(grads[0]), None


def ede_sign(x: Tensor, progress: float) -> Tensor:
    """sign(x) with the gradient of EDE."""
    return cast(Tensor, _EdeSign.apply(x, progress))  # type: ignore[no-untyped-call]


def ede_slope(x: Tensor, progress: float) -> Tensor:
    """g'(x); k t = max(1, t)."""
    t = T_MIN * (T_MAX / T_MIN) ** progress
    return (t * x).tanh_().square_().neg_().add_(1).mul_(max(1.0, t))


def filter_moments(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """W less its mean, and variance and mean, of every filter."""
    dims = tuple(range(1, weight.dim()))
    mean = weight.mean(dim=dims, keepdim=True)
    centred = weight - mean
    return centred, centred.square().mean(dim=dims, keepdim=True), mean


def _standardised(weight: Tensor) -> Tensor:
    centred, variance, _ = filter_moments(weight)
    return centred * variance.clamp_min(LEAST_VARIANCE).rsqrt()


def _shift(standard: Tensor) -> Tensor:
    """2**s of every filter."""
    size = standard.abs().mean(dim=tuple(range(1, standard.dim())), keepdim=True)
    return torch.where(size > 0, size, 1.0).log2_().round_().exp2_()
