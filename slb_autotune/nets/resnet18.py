"""ResNet18 for ImageNet with the shortcuts of "Bi-Real Net" (Liu et al., 2018)."""

from __future__ import annotations

from torch import Tensor, nn

from slb_autotune.nets.blocks import UnitOrder, conv, unit


class BiRealUnit(nn.Module):
    """One 3x3 convolution with a shortcut of its own.

    Where the unit downsamples, the shortcut averages 2x2 pixels and adds channels by a 1x1
    convolution.
    """

    def __init__(self, in_channels: int, channels: int, stride: int, order: UnitOrder) -> None:
        super().__init__()
        self.order = order
        self.conv, self.act, self.bn = unit(in_channels, channels, 3, stride, order)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                nn.AvgPool2d(stride, stride, ceil_mode=True),
                conv(in_channels, channels, 1),
                nn.BatchNorm2d(channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """The unit's output."""
        shortcut = self.downsample(x)
        if self.order == "conv_prelu_bn":
            return self.bn(self.act(self.conv(x))) + shortcut
        return self.act(self.bn(self.conv(x)) + shortcut)


class ResNet18(nn.Module):
    """A 7x7 convolution, four stages of four units, global average, one linear layer."""

    def __init__(self, width: int, in_channels: int, num_classes: int, order: UnitOrder) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = width
        for stage, factor in enumerate((1, 2, 4, 8), start=1):
            stride = 1 if stage == 1 else 2
            units = [BiRealUnit(channels, factor * width, stride, order)]
            channels = factor * width
            units += [BiRealUnit(channels, channels, 1, order) for _ in range(3)]
            self.add_module(f"layer{stage}", nn.Sequential(*units))
        self.fc = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(x.mean(dim=(2, 3)))


def resnet18(
    width: int = 64,
    in_channels: int = 3,
    num_classes: int = 1000,
    order: UnitOrder = "conv_prelu_bn",
) -> ResNet18:
    """ResNet18 with Bi-Real shortcuts; the block order is that of the authors' README.

    Without an activation between convolutions a network of float activations would be linear:
    the PReLU of that order has the role that the sign has in Bi-Real Net.
    """
    return ResNet18(width, in_channels, num_classes, order)
