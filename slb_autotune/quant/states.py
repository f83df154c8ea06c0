"""The two states of a network: continuous (W_c, its statistics) and discrete (W_q, its own)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn

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
