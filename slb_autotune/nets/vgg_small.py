"""VGG-Small, the six-convolution network of the LQ-Net line of work."""

from __future__ import annotations

from torch import Tensor, nn

from slb_autotune.errors import ConfigError
from slb_autotune.nets.blocks import conv


class VggSmall(nn.Module):
    """Three pairs of convolutions, each followed by 2x2 pooling, and one linear layer."""

    def __init__(self, width: int, in_channels: int, num_classes: int, image_size: int) -> None:
        super().__init__()
        if image_size < 8:
            raise ConfigError(
                f"vgg_small halves images three times: 8 pixels at least; got {image_size}"
            )
        self.stage1 = self._stage(in_channels, width)
        self.stage2 = self._stage(width, 2 * width)
        self.stage3 = self._stage(2 * width, 4 * width)
        self.fc = nn.Linear(4 * width * (image_size // 8) ** 2, num_classes)

    @staticmethod
    def _stage(in_channels: int, channels: int) -> nn.Sequential:
        parts: list[nn.Module] = []
        for inputs in (in_channels, channels):
            parts += [conv(inputs, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        # Pooling comes last, so that a BN always sees its convolution's own output.
        return nn.Sequential(*parts, nn.MaxPool2d(2))

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return self.fc(self.stage3(self.stage2(self.stage1(x))).flatten(1))


def vgg_small(
    width: int = 128, in_channels: int = 3, num_classes: int = 10, image_size: int = 32
) -> VggSmall:
    """VGG-Small: 128-128-256-256-512-512."""
    return VggSmall(width, in_channels, num_classes, image_size)
