"""Inputs of "TBN: Convolutional Neural Network with Ternary Inputs and Binary Weights" (Wan et
al., 2018). The method's weights are BWN's.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from torch.autograd import Function


class TernaryActivation(nn.Module):
    """y = 1 where x > D, -1 where x < -D, else 0, with D = 0.4 mean |x|; no scale.

    dy/dx = 1 for |x| <= 1, 0 outside; D is a constant in the backward pass. The mean is over one
    example, in training as at inference, so that predictions do not depend on the batch and no
    number is stored; the authors' code takes that of the batch and keeps a moving average.
    """

    def __init__(self, bits: int = 2) -> None:
        super().__init__()
        self.bits = bits

    def forward(self, x: Tensor) -> Tensor:
        """Quantise `x`."""
        return cast(Tensor, _Ternary.apply(x))  # type: ignore[no-untyped-call]


class _Ternary(Function):
    """-1, 0 or 1; the gradient passes where |x| <= 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        size = x.abs()
        threshold = 0.4 * size.mean(dim=tuple(range(1, x.dim())), keepdim=True)
        return x.sign().mul_(size > threshold)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * (x.abs() <= 1)
