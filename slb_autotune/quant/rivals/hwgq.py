"""Activations of "Deep Learning with Low Precision by Half-wave Gaussian Quantization" (Cai et
al., 2017). The method's weights are BWN's.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any, cast

from torch import Tensor, nn
from torch.autograd import Function


class HwgqActivation(nn.Module):
    """The best uniform levels for the positive half of N(0, 1), and 0 for the negative half.

    q(x) = 0 for x <= 0, else the nearest of d, 2 d, ..., n d, with n = 2**bits - 1; half-way is
    the lower one. d minimises the mean of (q(x) - x)^2 over x > 0; no x > 0 becomes 0. Of the
    paper's backward passes this is the clipped ReLU, which the authors' published networks use:
    dq/dx = 1 for 0 < x <= n d, 0 outside.

    The input should have unit variance, as a BN gives it; nothing here rescales it.
    """

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits

    def forward(self, x: Tensor) -> Tensor:
        """Quantise `x`."""
        count = 2**self.bits - 1
        return cast(
            Tensor,
            _HalfWave.apply(x, best_step(count), count),  # type: ignore[no-untyped-call]
        )

    def extra_repr(self) -> str:
        """Show the bits."""
        return f"bits={self.bits}"


class _HalfWave(Function):
    """The nearest of `count` multiples of `step` where x > 0; the gradient of the clipped ReLU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: float, count: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.top = step * count
        return x.div(step).sub_(0.5).ceil_().clamp_(1, count).mul_(step).mul_(x > 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * ((x > 0) & (x <= ctx.top)), None, None


@cache
def best_step(count: int) -> float:
    """The step d whose multiples up to `count` d are nearest to the positive half of N(0, 1).

    Lloyd's algorithm: between the edges half-way from level to level, the best step is
    sum i E[x; level i] / sum i^2 P[level i], which moves the edges.
    """
    step, before = 1.0, 0.0
    while abs(step - before) > 1e-12:
        before = step
        edges = [0.0, *((i + 0.5) * step for i in range(1, count)), math.inf]
        cells = list(enumerate(pairwise(edges), 1))
        first = sum(i * (_density(a) - _density(b)) for i, (a, b) in cells)
        step = first / sum(i * i * (_below(b) - _below(a)) for i, (a, b) in cells)
    return step


def _density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _below(x: float) -> float:
    return math.erf(x / math.sqrt(2)) / 2
