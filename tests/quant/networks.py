"""A small quantised network with all that torch's tools may trip over."""

import torch
from torch import nn

from slb_autotune.config.trial import NormConfig
from slb_autotune.quant import quantize

SHAPE = (3, 8, 8)


def small_network(
    bits: int = 2, mode: str = "calibrate", activation: str = "dorefa", every: int = 1
) -> nn.Module:
    """Two quantised convolutions, one of them grouped, with PReLU and BN in the authors' order."""
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.PReLU(8),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    return quantize(
        plain,
        bits,
        1 if activation == "sign" else 4,
        activation=activation,
        norm=NormConfig(mode=mode, every=every),
        example_input=torch.zeros(1, *SHAPE),
    )
