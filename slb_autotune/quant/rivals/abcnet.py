"""Weights and activations of "Towards Accurate Binary Convolutional Neural Network" (Lin et al.,
2017), ABC-Net.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from slb_autotune.quant.layers import Stored
from slb_autotune.quant.rivals.base import WeightQuantizer, signs, straight_through


class AbcNetWeight(WeightQuantizer):
    """W_q = sum of alpha_i B_i, i = 1, ..., bits, with B_i = sign(W - mean(W) + u_i std(W)).

    u_i = -1 + 2 (i - 1) / (bits - 1), the paper's fixed choice, and 0 at 1 bit, of which it does
    not speak. alpha minimises ||W - W_q||^2 over the whole layer. dB_i/dW = 1 and alpha is a
    constant in the backward pass, so that dW_q/dW = sum of alpha_i. Bit i - 1 of a code is 1
    where B_i is 1.
    """

    def forward(self, weight: Tensor) -> Tensor:
        """The low-bit weight."""
        fixed = weight.detach()
        codes = self.codes(fixed)
        alpha = self._alpha(fixed, codes)
        return straight_through(weight * alpha.sum(), self.decode(codes, {"alpha": alpha}))

    def codes(self, weight: Tensor) -> Tensor:
        """The signs of the bases as bits."""
        centred = weight - weight.mean()
        spread = centred.square().mean().sqrt()
        codes = torch.zeros_like(weight, dtype=torch.uint8)
        for i in range(self.bits):
            shift = -1 + 2 * i / (self.bits - 1) if self.bits > 1 else 0.0
            codes.add_(centred + shift * spread >= 0, alpha=2**i)
        return codes

    def stored(self, weight: Tensor) -> dict[str, Tensor]:
        """alpha."""
        return {"alpha": self._alpha(weight, self.codes(weight))}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """The sum of the bases."""
        alpha = stored["alpha"]
        patterns = torch.arange(2**self.bits, device=alpha.device)
        levels = torch.zeros_like(patterns, dtype=alpha.dtype)
        for i, scale in enumerate(alpha.unbind()):
            levels += scale * (2 * (patterns >> i & 1) - 1)
        return levels[codes.long()]

    def _alpha(self, weight: Tensor, codes: Tensor) -> Tensor:
        """The least-squares solution.

        The bases are nested: B_i <= B_(i + 1). So only bits + 1 patterns occur, the last k bases
        being 1 for k = 0, ..., bits, and W_q takes one value for each. The values are free, but
        for the last being minus the first. The best ones are then the means of W where the
        pattern is, and for those two the mean of W times the sign that they share. From one
        value to the next W_q rises by twice the alpha of the basis that turns.
        """
        counts, sums = [], []
        for k in range(self.bits + 1):
            here = (codes == 2**self.bits - 2 ** (self.bits - k)).to(weight.dtype)
            counts.append(here.sum())
            sums.append(here.mul_(weight).sum())
        last = (sums[-1] - sums[0]) / (counts[-1] + counts[0]).clamp_min(1)
        inner = [total / n.clamp_min(1) for total, n in zip(sums[1:-1], counts[1:-1], strict=True)]
        return torch.stack([-last, *inner, last]).diff().flip(0) / 2


class AbcNetActivation(nn.Module):
    """y = sum of beta_j A_j, j = 1, ..., bits; A_j = 1 where clip(x + v_j, 0, 1) >= 0.5, else -1.

    v and beta are learned. dA_j/dx = dA_j/dv_j = 1 for 0 <= x + v_j <= 1, 0 outside;
    dy/dbeta_j = A_j. The paper does not give their first values: here v_j makes the thresholds
    (2 j - 1) / (2 bits), evenly over the clip's [0, 1], and beta_j = 1 / bits.
    """

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits
        self.shift = nn.Parameter(0.5 - (torch.arange(bits) + 0.5) / bits)
        self.scale = nn.Parameter(torch.full((bits,), 1 / bits))

    def forward(self, x: Tensor) -> Tensor:
        """Quantise `x`."""
        return cast(
            Tensor,
            _ShiftedSigns.apply(x, self.shift, self.scale),  # type: ignore[no-untyped-call]
        )

    def extra_repr(self) -> str:
        """Show the bits."""
        return f"bits={self.bits}"


class _ShiftedSigns(Function):
    """The sum of scale or -scale, as x + shift >= 0.5 or not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, shift, scale)
        y = torch.zeros_like(x)
        for v, beta in zip(shift, scale, strict=True):
            y += signs(x + v >= 0.5, x).mul_(beta)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, shift, scale = ctx.saved_tensors
        to_x = torch.zeros_like(x)
        to_shift, to_scale = [], []
        for v, beta in zip(shift, scale, strict=True):
            shifted = x + v
            to_scale.append(signs(shifted >= 0.5, x).mul_(grads[0]).sum(dtype=v.dtype))
            inside = (grads[0] * ((shifted >= 0) & (shifted <= 1))).mul_(beta)
            to_shift.append(inside.sum(dtype=v.dtype))
            to_x += inside
        return to_x, torch.stack(to_shift), torch.stack(to_scale)
