"""Weights of "SYQ: Learning Symmetric Quantization For Efficient Deep Neural Networks"
(Faraone et al., 2018). Its activations are DoReFa's.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from slb_autotune.quant.layers import Stored
from slb_autotune.quant.rivals.base import WeightQuantizer, sign, sign_codes, signs
from slb_autotune.quant.rivals.ttq import ternary


class SyqWeight(WeightQuantizer):
    """W_q = alpha_i Q with a learned alpha_i for every place i of the kernel ("pixel-wise").

    Q is sign(W) at 1 bit; at 2 bits it is ternary: sign(W) where |W| > 0.05 max |W| over the
    layer, 0 elsewhere. A linear layer and a 1x1 convolution have one alpha. alpha_i starts as the
    mean of |W| at its place. With g the gradient of W_q:

        dL/dalpha_i = sum of g Q over all weights at place i
        dL/dW       = alpha_i g where Q is not 0, g where it is

    The factor 1 where Q is 0 is that of the authors' program, and of TTQ before it.
    """

    def __init__(self, bits: int, weight_shape: torch.Size) -> None:
        super().__init__(bits, weight_shape)
        self.alpha = nn.Parameter(torch.ones(1, 1, *weight_shape[2:]))

    def start(self, weight: Tensor) -> None:
        """alpha_i = the mean of |W| at place i."""
        self.alpha.copy_(weight.abs().mean(dim=(0, 1), keepdim=True))

    def forward(self, weight: Tensor) -> Tensor:
        """alpha_i Q."""
        levels = sign(weight.detach()) if self.bits == 1 else ternary(weight)
        return cast(Tensor, _Scaled.apply(weight, self.alpha, levels))  # type: ignore[no-untyped-call]

    def codes(self, weight: Tensor) -> Tensor:
        """1 bit: 0 for -1, 1 for 1. 2 bits: 0 for -1, 1 for 0, 2 for 1; 3 is never written."""
        return sign_codes(weight) if self.bits == 1 else (ternary(weight) + 1).to(torch.uint8)

    def stored(self, weight: Tensor) -> dict[str, Tensor]:
        """alpha of every place of the kernel."""
        return {"alpha": self.alpha.detach().flatten()}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """alpha_i Q; the code 3 means 0."""
        alpha = stored["alpha"]
        if self.bits == 1:
            levels = signs(codes, alpha)
        else:
            levels = (codes.to(alpha.dtype) - 1) * (codes != 3)
        return alpha.view(1, 1, *self.weight_shape[2:]) * levels


class _Scaled(Function):
    """alpha Q; the gradients are those of `SyqWeight`."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, alpha: Tensor, levels: Tensor) -> Tensor:
        ctx.save_for_backward(alpha, levels)
        return alpha * levels

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        alpha, levels = ctx.saved_tensors
        to_alpha = (grads[0] * levels).sum(dim=(0, 1), keepdim=True)
        used = levels.abs()
        return (1 - used).addcmul_(alpha, used).mul_(grads[0]), to_alpha, None
