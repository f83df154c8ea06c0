"""Weights of "Trained Ternary Quantization" (Zhu et al., 2017)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from slb_autotune.quant.layers import Stored
from slb_autotune.quant.rivals.base import WeightQuantizer

THRESHOLD = 0.05  # of the layer's largest |W|


class TtqWeight(WeightQuantizer):
    """W_t = p where W > d, -n where W < -d, 0 between, with d = 0.05 max |W| over the layer.

    p and n are learned, one pair per layer. With g the gradient of W_t:

        dL/dp =  sum of g where W > d
        dL/dn = -sum of g where W < -d
        dL/dW = p g where W > d, n g where W < -d, g between

    The paper prints dL/dn without its minus, which its own W_t = -n asks for and the authors'
    program has. p and n start at 1, as in that program. Three levels take 2 bits; the fourth
    code, which is never written, means 0.
    """

    def __init__(self, bits: int, weight_shape: torch.Size) -> None:
        super().__init__(bits, weight_shape)
        self.positive = nn.Parameter(torch.ones(1))
        self.negative = nn.Parameter(torch.ones(1))

    def forward(self, weight: Tensor) -> Tensor:
        """-n, 0 or p."""
        levels = ternary(weight)
        ternarized = _Ternarized.apply(weight, self.positive, self.negative, levels)  # type: ignore[no-untyped-call]
        return cast(Tensor, ternarized)

    def codes(self, weight: Tensor) -> Tensor:
        """0 for -n, 1 for 0, 2 for p."""
        return (ternary(weight) + 1).to(torch.uint8)

    def stored(self, weight: Tensor) -> dict[str, Tensor]:
        """p and n."""
        return {"positive": self.positive.detach(), "negative": self.negative.detach()}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """-n, 0 or p."""
        below = -stored["negative"] * (codes == 0)
        return torch.where(codes == 2, stored["positive"], below)


class _Ternarized(Function):
    """p, -n or 0 where `levels` is 1, -1 or 0; the gradients are those of `TtqWeight`."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, positive: Tensor, negative: Tensor, levels: Tensor
    ) -> Tensor:
        ctx.save_for_backward(positive, negative, levels)
        return (levels.clamp(min=0) * positive).addcmul_(levels.clamp(max=0), negative)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        positive, negative, levels = ctx.saved_tensors
        above, below = levels.clamp(min=0), levels.clamp(max=0)
        to_positive = (grads[0] * above).sum().view(1)
        to_negative = (grads[0] * below).sum().view(1)
        factor = (1 - levels.abs()).addcmul_(above, positive).addcmul_(below, -negative)
        return factor.mul_(grads[0]), to_positive, to_negative, None


@torch.no_grad()
def ternary(weight: Tensor) -> Tensor:
    """1, 0 or -1: the sign of W where |W| is above 0.05 of the layer's largest, 0 elsewhere."""
    magnitude = weight.abs()
    return weight.sign().mul_(magnitude > THRESHOLD * magnitude.max())
