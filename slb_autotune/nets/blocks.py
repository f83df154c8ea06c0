"""The building block of the networks: a convolution, its activation and its BN."""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from slb_autotune.errors import ConfigError

UnitOrder = Literal["conv_bn_relu", "conv_prelu_bn"]


def conv(in_channels: int, channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the image's size at stride 1, kaiming-normal."""
    layer = nn.Conv2d(in_channels, channels, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def unit(
    in_channels: int, channels: int, kernel: int, stride: int, order: UnitOrder
) -> tuple[nn.Conv2d, nn.Module, nn.BatchNorm2d]:
    """Convolution, activation and BN; the network names them and calls them in `order`."""
    if order not in get_args(UnitOrder):
        raise ConfigError(f"order must be one of {get_args(UnitOrder)}; got {order!r}")
    activation = nn.PReLU(channels) if order == "conv_prelu_bn" else nn.ReLU(inplace=True)
    return conv(in_channels, channels, kernel, stride), activation, nn.BatchNorm2d(channels)
