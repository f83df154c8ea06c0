"""The states of a network: continuous (W_c) or discrete (W_q), and how far training has come."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn

from slb_autotune.errors import ConfigError

State = Literal["continuous", "discrete"]


class TwoState(nn.Module):
    """A module that behaves differently in the two states.

    By default the mode decides: continuous in train mode, discrete in eval mode. `state`
    overrides that; None follows the mode again.
    """

    state: State | None = None

    @property
    def is_discrete(self) -> bool:
        """Whether W_q and its statistics are in use."""
        return not self.training if self.state is None else self.state == "discrete"


@contextmanager
def network_state(network: nn.Module, state: State | None) -> Iterator[None]:
    """Hold every two-state module of `network` in `state`, and put it back afterwards."""
    modules = [module for module in network.modules() if isinstance(module, TwoState)]
    before = [module.state for module in modules]
    for module in modules:
        module.state = state
    try:
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            module.state = old


class Annealed(nn.Module):
    """A module that changes over training: T rises, and `progress` goes from 0 to 1.

    Both read as floats. They belong to training, like the learning rate, not to the state dict.
    """

    temperature: float = 1.0
    progress: float = 0.0


def set_temperature(network: nn.Module, T: float, progress: float = 0.0) -> None:
    """Set T and the share of training done, in [0, 1], of every annealed module."""
    if not 0 < T < math.inf:
        raise ConfigError(f"T must be a positive number; got {T}")
    for module in network.modules():
        if isinstance(module, Annealed):
            module.temperature, module.progress = T, progress
