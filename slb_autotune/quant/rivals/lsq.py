""" "Learned Step Size Quantization" (Esser et al., 2020): uniform steps whose size s is learned.

With the levels from -Q_N to Q_P,

    q(v)  = s round(clip(v / s, -Q_N, Q_P))
    dq/dv = 1 where -Q_N < v / s < Q_P, 0 outside
    dq/ds = round(v / s) - v / s where -Q_N < v / s < Q_P, -Q_N below, Q_P above

and the gradient of s is multiplied by 1 / sqrt(N Q_P), for N weights or features in the layer. s
starts at 2 mean|v| / sqrt(Q_P).
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from slb_autotune.quant.layers import Stored
from slb_autotune.quant.rivals.base import (
    FirstBatch,
    WeightQuantizer,
    sign,
    sign_codes,
    signs,
)


class _LearnedStep(Function):
    """s round(clip(v / s, low, high)) with the paper's gradients; `binary` takes the sign."""

    @staticmethod
    def forward(
        ctx: Any, v: Tensor, step: Tensor, low: int, high: int, scale: float, binary: bool
    ) -> Tensor:
        ctx.save_for_backward(v, step)
        ctx.low, ctx.high, ctx.scale, ctx.binary = low, high, scale, binary
        positive = positive_step(step)
        if binary:
            return sign(v) * positive
        return v.div(positive).clamp_(low, high).round_().mul_(positive)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        v, step = ctx.saved_tensors
        ratio = v / positive_step(step)
        inside = (ratio > ctx.low) & (ratio < ctx.high)
        level = sign(ratio) if ctx.binary else ratio.clamp(ctx.low, ctx.high).round_()
        to_step = (grads[0] * level.sub_(ratio.mul_(inside))).sum() * ctx.scale
        return grads[0] * inside, to_step.reshape(step.shape), None, None, None, None


def positive_step(step: Tensor) -> Tensor:
    """The step, held above 0 should the optimiser carry it lower; its gradient takes no notice."""
    return step.clamp_min(torch.finfo(step.dtype).eps)


def learned_step(
    v: Tensor, step: Tensor, low: int, high: int, count: int, binary: bool = False
) -> Tensor:
    """q(v) for levels from `low` to `high` in a layer of `count` weights or features."""
    scale = 1 / math.sqrt(count * high)
    quantised = _LearnedStep.apply(v, step, low, high, scale, binary)  # type: ignore[no-untyped-call]
    return cast(Tensor, quantised)


class LsqWeight(WeightQuantizer):
    """Weights of LSQ: Q_N = 2**(b-1), Q_P = 2**(b-1) - 1, one s per layer.

    The paper has no 1 bit, where these leave {-s, 0}. Here q(v) = s sign(v), which is the same
    formula with Q_N = Q_P = 1 and a sign for the rounding: dq/dv = 1 and dq/ds = sign(v) - v / s
    where |v| < s, 0 and sign(v) outside.
    """

    def __init__(self, bits: int, weight_shape: torch.Size) -> None:
        super().__init__(bits, weight_shape)
        self.low = -(2 ** (bits - 1))
        self.high = max(1, 2 ** (bits - 1) - 1)
        self.step = nn.Parameter(torch.ones(1))

    def start(self, weight: Tensor) -> None:
        """s = 2 mean|W| / sqrt(Q_P)."""
        self.step.copy_(2 * weight.abs().mean() / math.sqrt(self.high))

    def forward(self, weight: Tensor) -> Tensor:
        """The low-bit weight."""
        count = weight.numel()
        return learned_step(weight, self.step, self.low, self.high, count, self.bits == 1)

    def codes(self, weight: Tensor) -> Tensor:
        """The level, counted from the lowest."""
        if self.bits == 1:
            return sign_codes(weight)
        level = weight.div(positive_step(self.step)).clamp_(self.low, self.high).round_()
        return level.sub_(self.low).to(torch.uint8)

    def stored(self, weight: Tensor) -> dict[str, Tensor]:
        """s."""
        return {"step": positive_step(self.step)}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """s times the level."""
        step = stored["step"]
        if self.bits == 1:
            return signs(codes, step).mul_(step)
        return codes.to(step.dtype).sub_(2 ** (self.bits - 1)).mul_(step)


class LsqActivation(FirstBatch):
    """Activations of LSQ: Q_N = 0, Q_P = 2**b - 1, so what is below 0 becomes 0; one s per
    layer.

    s is set by the first batch of training, of which the part above 0 counts: behind a ReLU, as
    in the paper, that is all of it. N is the number of features of one example: the paper does
    not say that the batch counts.
    """

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        self.high = 2**bits - 1
        self.step = nn.Parameter(torch.ones(1))

    def first_values(self, x: Tensor) -> dict[str, Tensor]:
        """s = 2 mean(max(x, 0)) / sqrt(Q_P)."""
        return {"step": 2 * x.clamp(min=0).mean() / math.sqrt(self.high)}

    def forward(self, x: Tensor) -> Tensor:
        """Quantise `x`."""
        self.observe(x)
        return learned_step(x, self.step, 0, self.high, x.shape[1:].numel())
