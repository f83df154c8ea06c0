"""ResNet20 for small images ("Deep Residual Learning", He et al., 2016, section 4.2)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from slb_autotune.errors import ConfigError
from slb_autotune.nets.blocks import UnitOrder, unit


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with an identity shortcut.

    The shortcut has no parameters (option A): where the block downsamples, it takes every second
    pixel and pads the new channels with zeros.
    """

    def __init__(self, in_channels: int, channels: int, stride: int, order: UnitOrder) -> None:
        super().__init__()
        self.stride, self.new_channels = stride, channels - in_channels
        self.conv1, self.act1, self.bn1 = unit(in_channels, channels, 3, stride, order)
        self.conv2, self.act2, self.bn2 = unit(channels, channels, 3, 1, order)
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.new_channels:
            shortcut = F.pad(shortcut, (0, 0, 0, 0, 0, self.new_channels))
        if self.order == "conv_prelu_bn":
            y = self.bn1(self.act1(self.conv1(x)))
            return self.bn2(self.act2(self.conv2(y))) + shortcut
        y = self.act1(self.bn1(self.conv1(x)))
        return self.act2(self.bn2(self.conv2(y)) + shortcut)


class ResNet20(nn.Module):
    """One convolution, three stages of `blocks` blocks, global average, one linear layer."""

    def __init__(
        self, width: int, in_channels: int, num_classes: int, order: UnitOrder, blocks: int
    ) -> None:
        super().__init__()
        self.conv1, self.act1, self.bn1 = unit(in_channels, width, 3, 1, order)
        self.order = order
        self.layer1 = self._stage(width, width, 1, order, blocks)
        self.layer2 = self._stage(width, 2 * width, 2, order, blocks)
        self.layer3 = self._stage(2 * width, 4 * width, 2, order, blocks)
        self.fc = nn.Linear(4 * width, num_classes)

    @staticmethod
    def _stage(
        in_channels: int, channels: int, stride: int, order: UnitOrder, blocks: int
    ) -> nn.Sequential:
        first = BasicBlock(in_channels, channels, stride, order)
        return nn.Sequential(
            first, *(BasicBlock(channels, channels, 1, order) for _ in range(blocks - 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        if self.order == "conv_prelu_bn":
            x = self.bn1(self.act1(self.conv1(x)))
        else:
            x = self.act1(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean(dim=(2, 3)))


def resnet20(
    width: int = 16,
    in_channels: int = 3,
    num_classes: int = 10,
    order: UnitOrder = "conv_bn_relu",
    blocks: int = 3,
) -> ResNet20:
    """ResNet20; `order` "conv_prelu_bn" is the block order of the authors' README.

    `blocks` per stage select another network of the family: 5 for ResNet32, 9 for ResNet56, 1 for
    ResNet8.
    """
    if blocks < 1:
        raise ConfigError(f"blocks must be at least 1; got {blocks}")
    return ResNet20(width, in_channels, num_classes, order, blocks)
