"""Networks of a user's own that fail in ways of their own, for studies to survive."""

import os
import signal
from pathlib import Path

import torch
from torch import nn

from slb_autotune.nets.resnet20 import resnet20


def broken(width: int = 4, in_channels: int = 1, num_classes: int = 10) -> nn.Module:
    """Raises in training, not when it is built."""

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = resnet20(width, in_channels, num_classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                raise KeyError("a bug of the user's")
            return self.inner(x)

    return Broken()


def killer(
    width: int = 4, in_channels: int = 1, num_classes: int = 10, marker: str = ""
) -> nn.Module:
    """Kills its process in the first training step ever, and behaves afterwards."""

    class Killer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = resnet20(width, in_channels, num_classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training and not Path(marker).exists():
                Path(marker).write_text("")
                os.kill(os.getpid(), signal.SIGKILL)
            return self.inner(x)

    return Killer()
