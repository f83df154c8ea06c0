"""Weights of "Bi-Real Net: Enhancing the Performance of 1-bit CNNs With Improved Representational
Capability and Advanced Training Algorithm" (Liu et al., 2018). Its activations are
`slb_autotune.quant.activations.BiRealSign`; its shortcuts are a matter of the network.
"""

from __future__ import annotations

from torch import Tensor

from slb_autotune.quant.rivals.base import clipped_sign, filter_shape
from slb_autotune.quant.rivals.binary import BwnWeight


class BiRealWeight(BwnWeight):
    """W_b = alpha sign(W) with alpha = mean |W| over a filter, the "magnitude-aware" sign.

    dW_b/dW = alpha where |W| <= 1, 0 outside: other than in BWN, alpha is a constant. The authors'
    program leaves the factor alpha out of it, their paper does not. The paper drops alpha after
    training, as the BN can take it up; here every method's scale factors count on their own.
    """

    def forward(self, weight: Tensor) -> Tensor:
        """alpha sign(W)."""
        alpha = self.stored(weight.detach())["alpha"]
        return alpha.view(filter_shape(weight)) * clipped_sign(weight)
