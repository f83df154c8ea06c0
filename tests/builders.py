"""Small configurations and networks that tests share."""

from __future__ import annotations

from typing import Any

from torch import nn

from slb_autotune.config import TrialConfig
from slb_autotune.data.base import DataInfo

CIFAR = DataInfo("classification", in_channels=3, num_classes=10, image_size=32)

TINY = {
    "network.width": 4,
    "data.train_images": 64,
    "batch_size": 32,
    "epochs": 1,
    "norm.batches": 1,
    "device": "cpu",
}


def tiny_config(**changes: Any) -> TrialConfig:
    """ResNet20 of width 4 on 64 digits for one epoch; changes by dotted or short names."""
    return TrialConfig.from_mapping(TINY).updated(changes)


def tiny_network(bias: bool = False) -> nn.Sequential:
    """Convolutions 1-3-5 and a linear layer, for images of 8x8: small enough to count by hand."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 5, 3, bias=bias),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(5, 10),
    )
