"""Signs of weights: BNN, and with a scale for every filter BWN and XNOR-Net."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slb_autotune.quant.layers import Convolution, LowBitLayer, Stored
from slb_autotune.quant.rivals.base import (
    WeightQuantizer,
    clipped_sign,
    filter_shape,
    sign_codes,
    signs,
)


class BnnWeight(WeightQuantizer):
    """ "Binarized Neural Networks" (Hubara et al., 2016).

    W_b = sign(W), without a scale; dW_b/dW = 1 where |W| <= 1, 0 outside.
    """

    def forward(self, weight: Tensor) -> Tensor:
        """sign(W)."""
        return clipped_sign(weight)

    def codes(self, weight: Tensor) -> Tensor:
        """1 for +1, 0 for -1."""
        return sign_codes(weight)

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """-1 or 1."""
        return signs(codes)


class BwnWeight(WeightQuantizer):
    """ "XNOR-Net: ImageNet Classification Using Binary Convolutional Neural Networks"
    (Rastegari et al., 2016): the weights, which alone are Binary-Weight-Networks.

    W_b = alpha sign(W) with alpha = mean |W| over the n weights of a filter, which is nearest to W
    in the squared sense; dW_b,j/dW_i = sign(W_i) sign(W_j) / n + [i = j] alpha 1(|W_i| <= 1). The
    paper prints the first term for i = j only.
    """

    def forward(self, weight: Tensor) -> Tensor:
        """alpha sign(W)."""
        return _filter_mean(weight.abs()) * clipped_sign(weight)

    def codes(self, weight: Tensor) -> Tensor:
        """1 for +1, 0 for -1."""
        return sign_codes(weight)

    def stored(self, weight: Tensor) -> dict[str, Tensor]:
        """alpha of every filter."""
        return {"alpha": _filter_mean(weight.abs()).flatten()}

    def decode(self, codes: Tensor, stored: Stored) -> Tensor:
        """-alpha or alpha."""
        alpha = stored["alpha"]
        return alpha.view(filter_shape(codes)) * signs(codes, alpha)


def _filter_mean(x: Tensor) -> Tensor:
    return x.mean(dim=tuple(range(1, x.dim())), keepdim=True)


class ClippedSign(nn.Module):
    """Activations of BNN: sign(x); the gradient passes where |x| <= 1."""

    def __init__(self, bits: int = 1) -> None:
        super().__init__()
        self.bits = bits

    def forward(self, x: Tensor) -> Tensor:
        """Quantise `x`."""
        return clipped_sign(x)


class XnorSign(ClippedSign):
    """Activations of XNOR-Net: signs, and a scale K for every place of the output.

    K is |x|, averaged over the channels and over the kernel's window; the convolution's output is
    multiplied by it. K is counted a constant in the backward pass, as in the paper's Algorithm 1.
    """

    @torch.no_grad()
    def output_factor(self, x: Tensor, layer: LowBitLayer) -> Tensor:
        """K for the output of `layer` on `x`."""
        if not isinstance(layer, Convolution):
            return x.abs().mean(dim=-1, keepdim=True)
        if x.dim() == 3:
            return self.output_factor(x.unsqueeze(0), layer)[0]
        groups, (high, wide) = layer.groups, layer.kernel_size
        count, channels, *size = x.shape
        mean = x.abs().view(count, groups, channels // groups, *size).mean(dim=2)
        window = torch.full((groups, 1, high, wide), 1 / (high * wide)).to(mean)
        K = F.conv2d(mean, window, None, layer.stride, layer.padding, layer.dilation, groups)
        return K.repeat_interleave(layer.weight_shape[0] // groups, dim=1)
