"""Weights of "DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low Bitwidth
Gradients" (Zhou et al., 2016). Its gradients are not quantised here, its activations are in
`slb_autotune.quant.activations`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slb_autotune.quant.layers import Stored
from slb_autotune.quant.rivals.base import (
    WeightQuantizer,
    sign,
    sign_codes,
    signs,
    straight_through,
)


class DoReFaWeight(WeightQuantizer):
    """1 bit: W_q = E|W| sign(W), with E|W| the mean of the layer, and dW_q/dW = 1.

    k bits: W_q = 2 q(tanh(W) / (2 max|tanh(W)|) + 1/2) - 1 with q(x) = round(n x) / n and
    n = 2**k - 1; q passes the gradient as it is, tanh has its own, and the maximum is a constant.
    """

    def forward(self, weight: Tensor) -> Tensor:
        """The low-bit weight."""
        if self.bits == 1:
            return straight_through(weight, weight.abs().mean() * sign(weight))
        unit = self._unit(weight)
        return 2 * straight_through(unit, self._round(unit) / self._steps) - 1

    def codes(self, weight: Tensor) -> Tensor:
        """1 for +, 0 for -; or the step on [0, 1]."""
        if self.bits == 1:
            return sign_codes(weight)
        return self._round(self._unit(weight)).to(torch.uint8)

    def stored(self, weight: Tensor) -> dict[str, Tensor]:
        """E|W| at 1 bit; no number at more."""
        return {"scale": weight.abs().mean().view(1)} if self.bits == 1 else {}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """The low-bit weight."""
        if self.bits == 1:
            return stored["scale"] * signs(codes, stored["scale"])
        return 2 * (codes.to(torch.get_default_dtype()) / self._steps) - 1

    @property
    def _steps(self) -> int:
        return 2**self.bits - 1

    def _unit(self, weight: Tensor) -> Tensor:
        """tanh(W), shifted and scaled to [0, 1]."""
        bounded = weight.tanh()
        largest = bounded.detach().abs().max().clamp_min(1e-5)
        return bounded / (2 * largest) + 0.5

    def _round(self, unit: Tensor) -> Tensor:
        return (unit * self._steps).round()
