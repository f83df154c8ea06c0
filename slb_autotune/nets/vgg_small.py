"""VGG-Small, the six-convolution network of the LQ-Net line of work."""

from __future__ import annotations

from torch import Tensor, nn

from slb_autotune.errors import ConfigError
from slb_autotune.nets.blocks import conv


class VggSmall(nn.Module):
    """Three pairs of convolutions, the picture halved after each pair, and one linear layer."""

    def __init__(self, width: int, in_channels: int, num_classes: int, image_size: int) -> None:
        super().__init__()
        if image_size < 8:
            raise ConfigError(
                f"vgg_small halves images three times: 8 pixels at least; got {image_size}"
            )
        parts: list[nn.Module] = []
        for channels in (width, 2 * width, 4 * width):
            for pooled in (False, True):
                # Pooling comes last, so that a BN always sees its convolution's own output.
                parts += [conv(in_channels, channels, 3), nn.BatchNorm2d(channels)]
                parts += [nn.ReLU(inplace=True)]
                parts += [nn.MaxPool2d(2)] if pooled else []
                in_channels = channels
        self.features = nn.Sequential(*parts)
        self.fc = nn.Linear(4 * width * (image_size // 8) ** 2, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return self.fc(self.features(x).flatten(1))


def vgg_small(
    width: int = 128, in_channels: int = 3, num_classes: int = 10, image_size: int = 32
) -> VggSmall:
    """VGG-Small: 128-128-256-256-512-512."""
    return VggSmall(width, in_channels, num_classes, image_size)
