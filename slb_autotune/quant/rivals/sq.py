""" "Quantization Networks" (Yang et al., 2019), which others call SQ: stairs of sigmoids.

With n = 2**b - 1 steps between the 2**b levels Y,

    y = alpha (sum_i s_i sigmoid(T (beta x - b_i)) - o)     in training, T rising
    y = alpha (sum_i s_i [beta x >= b_i] - o)               at inference

where s_i is the gap between two levels and o centres them. alpha and beta are learned. beta
starts at 5p / 4q, p and q being the largest magnitudes of Y and x, and alpha at 1 / beta. The b_i
stay as they start: midway between the centres of 2**b clusters of beta x. All gradients are those
of the formula; with h_i = tanh(T (beta x - b_i) / 2) = 2 sigmoid(T (beta x - b_i)) - 1

    dy/dx = alpha beta sum_i s_i T/4 (1 - h_i**2),  dy/dbeta = x/beta dy/dx,  dy/dalpha = y/alpha

The paper raises T from 5 or 10 to some hundreds. A T below 1 is taken as 1: the curve is all but
straight there already, and would only shrink until the eps of the BN behind it drowns it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from slb_autotune.quant.layers import Stored
from slb_autotune.quant.rivals.base import FirstBatch, WeightQuantizer
from slb_autotune.quant.states import Annealed, TwoState

T_MIN = 1.0
# Of an activation's slope in the backward pass: at T = 4 the steepest slope of one step is 1.
T_SLOPE_MAX = 4.0

_CLUSTER_ROUNDS = 100


class _SoftStairs(Function):
    """S = sum_i tanh(T (beta x - b_i) / 2); the slope of the backward pass is that at T_slope."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, beta: Tensor, biases: Tensor, T: float, T_slope: float
    ) -> Tensor:
        ctx.save_for_backward(x, beta, biases)
        ctx.T_slope = T_slope
        waves = _waves(x, beta, biases, T)
        total = next(waves).clone()
        for h in waves:
            total.add_(h)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        x, beta, biases = ctx.saved_tensors
        waves = _waves(x, beta, biases, ctx.T_slope)
        squares = next(waves).square()
        for h in waves:
            squares.addcmul_(h, h)
        slope = squares.neg_().add_(len(biases)).mul_(ctx.T_slope / 2)
        pull = grads[0] * slope
        return pull * beta, (pull * x).sum().view(1), None, None, None


def _waves(x: Tensor, beta: Tensor, biases: Tensor, T: float) -> Iterator[Tensor]:
    """tanh(T (beta x - b_i) / 2) for every i in turn, all in the same memory."""
    scaled = x * (beta * (T / 2))
    h = torch.empty_like(scaled)
    for bias in biases * (T / 2):
        yield torch.sub(scaled, bias, out=h).tanh_()


def soft_stairs(x: Tensor, beta: Tensor, biases: Tensor, T: float, T_slope: float) -> Tensor:
    """S, between -n and n."""
    stairs = _SoftStairs.apply(x, beta, biases, max(T, T_MIN), max(T_slope, T_MIN))  # type: ignore[no-untyped-call]
    return cast(Tensor, stairs)


def hard_stairs(x: Tensor, beta: Tensor, biases: Tensor) -> Tensor:
    """How many b_i are at or below beta x, as uint8."""
    scaled = x * beta
    count = torch.zeros_like(scaled, dtype=torch.uint8)
    for bias in biases:
        count.add_(scaled >= bias)
    return count


def first_scale(x: Tensor, largest: int) -> Tensor:
    """beta at the start: 5p / 4q, for `largest` p."""
    return 5 * largest / (4 * x.abs().max().clamp_min(torch.finfo(x.dtype).eps))


def cluster_borders(x: Tensor, count: int) -> Tensor:
    """The midpoints between the centres of `count` clusters of x, by k-means.

    The centres start evenly spread over the range of x; one whose cluster is empty stays.
    """
    if x.is_meta:  # shapes alone need no rounds
        return x.new_empty(count - 1)
    ordered = x.flatten().sort().values
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    places = torch.arange(count, dtype=ordered.dtype, device=ordered.device) + 0.5
    centres = ordered[0] + (ordered[-1] - ordered[0]) * places / count
    for _ in range(_CLUSTER_ROUNDS):
        ends = torch.searchsorted(ordered, (centres[1:] + centres[:-1]) / 2)
        ends = torch.cat([ends.new_zeros(1), ends, ends.new_full((1,), len(ordered))])
        sizes = ends.diff()
        centres = torch.where(sizes > 0, sums[ends].diff() / sizes.clamp_min(1), centres)
    return (centres[1:] + centres[:-1]) / 2


class SqWeight(WeightQuantizer):
    """Weights of SQ: Y = {-n, 2 - n, ..., n}, so s_i = 2 and o = n, and y = alpha sum_i h_i.

    At 1 bit this is the paper's {-1, 1} with b = 0. Its sets for more bits have 2**b - 1 levels,
    0 being one of them, and not all are uniform; here all 2**b codes are used, evenly spaced, as
    by the other methods. Inference needs alpha alone.
    """

    soft = True
    biases: Tensor

    def __init__(self, bits: int, weight_shape: torch.Size) -> None:
        super().__init__(bits, weight_shape)
        self.alpha = nn.Parameter(torch.ones(1))
        self.beta = nn.Parameter(torch.ones(1))
        self.register_buffer("biases", torch.zeros(2**bits - 1))

    def start(self, weight: Tensor) -> None:
        """beta, alpha and b."""
        beta = first_scale(weight, len(self.biases))
        self.beta.copy_(beta)
        self.alpha.copy_(1 / beta)
        if self.bits > 1:
            self.biases.copy_(cluster_borders(weight * beta, 2**self.bits))

    def forward(self, weight: Tensor) -> Tensor:
        """The soft weight."""
        T = self.temperature
        return self.alpha * soft_stairs(weight, self.beta, self.biases, T, T)

    def codes(self, weight: Tensor) -> Tensor:
        """How many steps up."""
        return hard_stairs(weight, self.beta, self.biases)

    def stored(self, weight: Tensor) -> dict[str, Tensor]:
        """alpha."""
        return {"alpha": self.alpha.detach()}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """alpha times the level."""
        alpha = stored["alpha"]
        return codes.to(alpha.dtype).mul_(2).sub_(2**self.bits - 1).mul_(alpha)


class SqActivation(FirstBatch, TwoState, Annealed):
    """Activations of SQ: Y = {0, 1, ..., n}, so s_i = 1 and o = 0; hard in the discrete state.

    The first batch of training sets beta, alpha and, by its clusters at 1 bit too, the b_i; the
    paper takes 1000 examples. In the backward pass the slope is that at min(T, 4). The true one
    grows with T in every layer. The paper starts from a float network, trains in three phases and
    clips gradients; from scratch a ResNet20 went astray once T passed 10 or so, even with clipped
    gradients. (The authors' code takes T = 1 there for binary networks.) Inference needs alpha,
    beta and the b_i.
    """

    soft = True

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        self.alpha = nn.Parameter(torch.ones(1))
        self.beta = nn.Parameter(torch.ones(1))
        self.biases = nn.Parameter(torch.arange(2**bits - 1) + 0.5, requires_grad=False)

    def first_values(self, x: Tensor) -> dict[str, Tensor]:
        """beta, alpha and b."""
        beta = first_scale(x, len(self.biases))
        borders = cluster_borders(x * beta, 2**self.bits)
        return {"alpha": 1 / beta, "beta": beta, "biases": borders}

    def forward(self, x: Tensor) -> Tensor:
        """Quantise `x`."""
        self.observe(x)
        if self.is_discrete:
            return self.alpha * hard_stairs(x, self.beta, self.biases)
        T = self.temperature
        stairs = soft_stairs(x, self.beta, self.biases, T, min(T, T_SLOPE_MAX))
        return self.alpha / 2 * (stairs + len(self.biases))
