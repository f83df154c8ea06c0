"""DSQ: "Differentiable Soft Quantization: Bridging Full-Precision and Low-Bit Neural Networks"
(Gong et al., 2019).

The range [l, u] has n = 2**b - 1 intervals of width D = (u - l) / n, the i-th with the middle
m_i = l + (i + 1/2) D. On it

    phi(x) = s tanh(k (x - m_i)),  s = 1 / (1 - alpha),  k = log(2 / alpha - 1) / D
    Q_S(x) = l + D (i + (phi(x) + 1) / 2)           soft: l below the range, u above it
    Q(x)   = l + D (i + (sgn(phi(x)) + 1) / 2)      hard: the nearest of the 2**b levels

The value is Q; the gradients with respect to x, l, u and alpha are those of Q_S, sgn passing them
as they are. alpha in (0, 1) is how far phi stays from a step: at 0 it is one, at 1 a straight
line. It starts at 0.2. The paper bounds alpha's norm, which the optimiser's weight decay does
here; it is further held in [0.001, 0.5], since the curve is a step at one end and all but
straight at the other.

The gradients of l, u and alpha are sums over a whole layer; at the learning rate of the weights l
and u ran away and crossed. The paper names no remedy; here they are multiplied by 1 / sqrt(N n),
for N weights or features in the layer, as LSQ does with its step for the same reason.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from slb_autotune.quant.layers import Stored
from slb_autotune.quant.rivals.base import FirstBatch, WeightQuantizer

ALPHA_START, ALPHA_MIN, ALPHA_MAX = 0.2, 1e-3, 0.5


class _SoftRound(Function):
    """Q forward, Q_S backward.

    With t = (x - l) / D, z = t - i - 1/2, K = k D, h = tanh(K z) and q = i + (s h + 1) / 2:

        dQ_S/dx     = d = s K (1 - h**2) / 2 in the range, 0 outside
        dQ_S/du     = (q - d t) / n
        dQ_S/dl     = 1 - d - dQ_S/du
        dQ_S/dalpha = D/2 (s**2 h - s (1 - h**2) 2 z / (alpha (2 - alpha)))
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, lower: Tensor, upper: Tensor, alpha: Tensor, steps: int, scale: float
    ) -> Tensor:
        ctx.save_for_backward(x, lower, upper, alpha)
        ctx.steps, ctx.scale = steps, scale
        width = step_width(lower, upper, steps)
        return nearest_level(x, lower, width, steps).mul_(width).add_(lower)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, lower, upper, alpha = ctx.saved_tensors
        n, (g,) = ctx.steps, grads
        width = step_width(lower, upper, n)
        a = alpha.clamp(ALPHA_MIN, ALPHA_MAX)
        s, K = 1 / (1 - a), (2 / a - 1).log()
        t = (x - lower).div_(width)
        inside = (t >= 0) & (t <= n)
        t.clamp_(0, n)
        i = t.floor()  # at u it is n, which gives the same as n - 1
        z = (t - i).sub_(0.5)
        h = (z * K).tanh_()
        bend = 1 - h * h
        to_x = (g * bend).mul_(inside).mul_(s * K / 2)
        # Outside the range the two terms of dQ_S/dalpha cancel.
        to_alpha = (g * (h * s - bend * z * (2 / (a * (2 - a))))).sum() * s * width / 2
        q = h.mul_(s / 2).add_(i).add_(0.5)
        to_upper = ((g * q).sum() - (to_x * t).sum()) / n
        to_lower = g.sum() - to_x.sum() - to_upper
        # At an end of its interval alpha is moved inwards only.
        down, up = (alpha <= ALPHA_MIN) & (to_alpha > 0), (alpha >= ALPHA_MAX) & (to_alpha < 0)
        to_alpha = to_alpha.masked_fill(down | up, 0)
        learned = (ctx.scale * grad.view(1) for grad in (to_lower, to_upper, to_alpha))
        return to_x, *learned, None, None


def step_width(lower: Tensor, upper: Tensor, steps: int) -> Tensor:
    """D, held above 0 where the optimiser lets l and u meet; the gradient takes no notice."""
    return (upper - lower).clamp_min(torch.finfo(lower.dtype).eps) / steps


def nearest_level(x: Tensor, lower: Tensor, width: Tensor, steps: int) -> Tensor:
    """The index of the level nearest to `x`, as a float number."""
    return (x - lower).div_(width).clamp_(0, steps).round_()


def soft_round(
    x: Tensor, lower: Tensor, upper: Tensor, alpha: Tensor, bits: int, count: int
) -> Tensor:
    """Q(x) with the gradients of Q_S, in a layer of `count` weights or features."""
    steps = 2**bits - 1
    scale = 1 / math.sqrt(count * steps)
    rounded = _SoftRound.apply(x, lower, upper, alpha, steps, scale)  # type: ignore[no-untyped-call]
    return cast(Tensor, rounded)


def first_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """l and u at the start: three standard deviations round the mean, no further than x goes."""
    low, high = x.aminmax()
    var, mean = torch.var_mean(x, correction=0)
    reach = 3 * var.sqrt()
    return torch.maximum(low, mean - reach), torch.minimum(high, mean + reach)


class DsqWeight(WeightQuantizer):
    """Weights of DSQ; l, u and alpha are learned for each layer.

    The paper leaves open where l and u start: here at the mean less and plus three standard
    deviations, or at the smallest and largest weight where these are nearer. At 1 bit the weights
    are l and u.
    """

    def __init__(self, bits: int, weight_shape: torch.Size) -> None:
        super().__init__(bits, weight_shape)
        self.lower = nn.Parameter(-torch.ones(1))
        self.upper = nn.Parameter(torch.ones(1))
        self.alpha = nn.Parameter(torch.full((1,), ALPHA_START))

    def start(self, weight: Tensor) -> None:
        """l and u."""
        lower, upper = first_range(weight)
        self.lower.copy_(lower)
        self.upper.copy_(upper)

    def forward(self, weight: Tensor) -> Tensor:
        """The low-bit weight."""
        count = weight.numel()
        return soft_round(weight, self.lower, self.upper, self.alpha, self.bits, count)

    def codes(self, weight: Tensor) -> Tensor:
        """The level, counted from l."""
        steps = 2**self.bits - 1
        width = step_width(self.lower, self.upper, steps)
        return nearest_level(weight, self.lower, width, steps).to(torch.uint8)

    def stored(self, weight: Tensor) -> dict[str, Tensor]:
        """l and u."""
        return {"lower": self.lower.detach(), "upper": self.upper.detach()}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """l + D times the level."""
        lower, upper = stored["lower"], stored["upper"]
        width = step_width(lower, upper, 2**self.bits - 1)
        return codes.to(lower.dtype).mul_(width).add_(lower)


class DsqActivation(FirstBatch):
    """Activations of DSQ: as the weights, l and u being set by the first batch of training.

    Inference needs l and u.
    """

    training_only = ("alpha",)

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        self.lower = nn.Parameter(torch.zeros(1))
        self.upper = nn.Parameter(torch.ones(1))
        self.alpha = nn.Parameter(torch.full((1,), ALPHA_START))

    def first_values(self, x: Tensor) -> dict[str, Tensor]:
        """l and u."""
        lower, upper = first_range(x)
        return {"lower": lower, "upper": upper}

    def forward(self, x: Tensor) -> Tensor:
        """Quantise `x`."""
        self.observe(x)
        count = x.shape[1:].numel()
        return soft_round(x, self.lower, self.upper, self.alpha, self.bits, count)
