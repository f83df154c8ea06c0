"""VDSR, "Accurate Image Super-Resolution Using Very Deep Convolutional Networks" (Kim, 2016)."""

from __future__ import annotations

from torch import Tensor, nn

from slb_autotune.errors import ConfigError
from slb_autotune.nets.blocks import conv


class Vdsr(nn.Module):
    """A chain of 3x3 convolutions that adds detail to an upscaled image.

    As published it has no BN; its quantised form has a state BN after each quantised convolution,
    and the last convolution stays float unless it is removed from `keep_float`.
    """

    keep_float = ("tail",)

    def __init__(self, width: int, depth: int, in_channels: int) -> None:
        super().__init__()
        if depth < 3:
            raise ConfigError(f"depth of vdsr must be at least 3; got {depth}")
        self.head = conv(in_channels, width, 3)
        self.body = nn.Sequential()
        for i in range(depth - 2):
            self.body.append(nn.ReLU(inplace=True))
            self.body.add_module(f"conv{i + 1}", conv(width, width, 3))
        self.relu = nn.ReLU(inplace=True)
        self.tail = conv(width, in_channels, 3)
        # No residual at first: training starts from the upscaled image, not from noise.
        nn.init.zeros_(self.tail.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The image with its residual added."""
        return x + self.tail(self.relu(self.body(self.head(x))))


def vdsr(width: int = 64, depth: int = 20, in_channels: int = 1) -> Vdsr:
    """VDSR of 20 convolutions of 64 channels."""
    return Vdsr(width, depth, in_channels)
