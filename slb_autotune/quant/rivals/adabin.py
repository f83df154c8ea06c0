""" "AdaBin: Improving Binary Neural Networks with Adaptive Binary Sets" (Tu et al., 2022).

A number x becomes one of two levels, beta - alpha below beta and beta + alpha from it on. With
z = (x - beta) / alpha, s = sign(z), h(z) the slope used in place of that of the sign, and g the
gradient of the level:

    dL/dx = g h(z),  dL/dalpha = sum of g (s - z h(z)),  dL/dbeta = sum of g (1 - h(z))

The Maxout that the paper's networks have in the place of the ReLU is left out: each network here
keeps its own nonlinearity, whatever the method.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from slb_autotune.quant.layers import Stored
from slb_autotune.quant.rivals.base import WeightQuantizer, filter_shape, sign, sign_codes, signs
from slb_autotune.quant.rivals.irnet import ede_slope, filter_moments


class AdaBinWeight(WeightQuantizer):
    """beta = mean(W) and alpha = ||W - beta|| / sqrt(n) over the n weights of a filter.

    Both follow W, so that dL/dW has three parts, with means over the filter:

        dL/dW = g h(z) + mean(g (1 - h(z))) + z mean(g (s - z h(z)))

    h is the slope of IR-Net's estimator, as in the authors' program for CIFAR-10; how sharp it
    starts and ends is IR-Net's too.
    """

    def forward(self, weight: Tensor) -> Tensor:
        """beta - alpha or beta + alpha."""
        return cast(Tensor, _Equalised.apply(weight, self.progress))  # type: ignore[no-untyped-call]

    def codes(self, weight: Tensor) -> Tensor:
        """1 for beta + alpha, 0 for beta - alpha."""
        return sign_codes(filter_moments(weight)[0])

    def stored(self, weight: Tensor) -> dict[str, Tensor]:
        """alpha and beta of every filter."""
        _, variance, mean = filter_moments(weight)
        return {"alpha": variance.sqrt().flatten(), "beta": mean.flatten()}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """beta - alpha or beta + alpha."""
        alpha, beta = (stored[name].view(filter_shape(codes)) for name in ("alpha", "beta"))
        return torch.addcmul(beta, alpha, signs(codes, alpha))


class AdaBinActivation(nn.Module):
    """alpha and beta are learned, one pair per layer; they start at 1 and 0, which is the sign.

    h(z) = 2 - 2|z| for |z| < 1, 0 outside: Bi-Real's, as in the authors' program. That program
    multiplies beta by alpha; the levels here are the paper's. The sign of alpha means nothing.
    """

    def __init__(self, bits: int = 1) -> None:
        super().__init__()
        self.bits = bits
        self.alpha = nn.Parameter(torch.ones(1))
        self.beta = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Quantise `x`."""
        return cast(Tensor, _TwoLevels.apply(x, self.alpha, self.beta))  # type: ignore[no-untyped-call]


class _Equalised(Function):
    """The low-bit weight and the gradient of `AdaBinWeight`."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, progress: float) -> Tensor:
        centred, variance, beta = filter_moments(weight)
        alpha = variance.sqrt_()
        standard = centred.div_(_not_zero(alpha))
        ctx.save_for_backward(standard)
        ctx.progress = progress
        return torch.addcmul(beta, alpha, sign(standard))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (standard,) = ctx.saved_tensors
        dims = tuple(range(1, standard.dim()))
        passed = ede_slope(standard, ctx.progress).mul_(grads[0])
        to_beta = (grads[0] - passed).mean(dim=dims, keepdim=True)
        to_alpha = sign(standard).mul_(grads[0]).sub_(passed * standard)
        to_alpha = to_alpha.mean(dim=dims, keepdim=True)
        return passed.add_(to_beta).addcmul_(standard, to_alpha), None


class _TwoLevels(Function):
    """beta -+ alpha; the gradients are those of the module docstring, h is Bi-Real's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        ctx.save_for_backward(x, alpha, beta)
        return torch.where(x >= beta, beta + alpha.abs(), beta - alpha.abs()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, alpha, beta = ctx.saved_tensors
        standard = (x - beta).div_(_not_zero(alpha.abs()))
        passed = (2 - 2 * standard.abs()).clamp_(min=0).mul_(grads[0])
        to_beta = (grads[0] - passed).sum().view(1)
        to_alpha = sign(standard).mul_(grads[0]).sub_(standard.mul_(passed)).sum().view(1)
        return passed, to_alpha * sign(alpha), to_beta


def _not_zero(alpha: Tensor) -> Tensor:
    return alpha.clamp_min(torch.finfo(alpha.dtype).eps)
