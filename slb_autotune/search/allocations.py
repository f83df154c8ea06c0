"""The best bits of every layer for a size, from a table of sensitivities.

The costs of the layers are taken to add up, so the best allocation within a budget of bytes is a
multiple-choice knapsack, which is solved exactly:

    minimise sum_l cost(l, b_l)   subject to   sum_l bytes(l, b_l) <= budget
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from slb_autotune.errors import ConfigError


def best_allocations(table: pd.DataFrame, sizes: int = 5) -> list[dict[str, int]]:
    """The best bits of every layer at `sizes` budgets, from the smallest total to the largest.

    The budgets are spread evenly in log bytes. At each the sum of max(cost, 0) is minimal: a cost
    below 0 is noise, and noise must not be paid for with bits. Among equal sums the allocation of
    fewer bytes is chosen. An allocation that is best at several budgets is listed once.
    """
    if sizes < 1:
        raise ConfigError(f"sizes must be at least 1; got {sizes}")
    if table.empty:
        raise ConfigError("the table of sensitivities is empty", "measure at least one layer.")
    invalid = table.loc[table["cost"].isna(), "layer"].tolist()
    if invalid:
        raise ConfigError(f"a cost of layer {invalid[0]!r} is not a number", "measure it again.")
    front = _Front.of(table)
    smallest, largest = front.bytes_[0], table.groupby("layer")["bytes"].max().sum()
    # Powers round: a budget a hair below a whole number of bytes is meant to be that number.
    budgets = np.geomspace(smallest, largest, sizes) * (1 + 1e-12)
    chosen = np.unique(np.searchsorted(front.bytes_, budgets, side="right") - 1)
    return [front.allocation(index) for index in chosen.tolist()]


@dataclass(frozen=True)
class _Front:
    """All non-dominated allocations: bytes rise, costs fall.

    Layer by layer, every partial allocation is extended by every width of the layer, and dropped
    only if another one matches or beats it in both bytes and cost. Whatever completes a dropped
    one completes the other no worse, so nothing is lost: bytes are whole numbers, and adding the
    same cost to both never reverses their order, in floating point either. No list is longer than
    (largest total - smallest total) / g + 1, with g the greatest common divisor of the
    differences between the widths' bytes.

    For each layer `parents` holds the index of the partial allocation that an entry extends, and
    `widths` the bits that it adds.
    """

    layers: list[str]
    bytes_: NDArray[np.int64]
    costs: NDArray[np.float64]
    parents: list[NDArray[np.int64]]
    widths: list[NDArray[np.int64]]

    @classmethod
    def of(cls, table: pd.DataFrame) -> _Front:
        """The front of a table with the columns layer, bits, cost and bytes."""
        front = cls([], np.zeros(1, np.int64), np.zeros(1), [], [])
        for layer, rows in table.groupby("layer", sort=False):
            front = front._extended(str(layer), rows.sort_values("bits"))
        return front

    def _extended(self, layer: str, rows: pd.DataFrame) -> _Front:
        """Every entry with every width of one more layer, without what is dominated."""
        widths = rows["bits"].to_numpy(np.int64)
        extra_bytes = rows["bytes"].to_numpy(np.int64)
        extra_costs = rows["cost"].to_numpy(np.float64).clip(min=0.0)
        total = (extra_bytes[:, None] + self.bytes_).ravel()
        cost = (self.costs + extra_costs[:, None]).ravel()
        order = np.lexsort((cost, total))
        least = np.minimum.accumulate(cost[order])
        order = order[np.append(True, cost[order][1:] < least[:-1])]
        choice, parent = np.divmod(order, len(self.bytes_))
        return _Front(
            [*self.layers, layer],
            total[order],
            cost[order],
            [*self.parents, parent],
            [*self.widths, widths[choice]],
        )

    def allocation(self, index: int) -> dict[str, int]:
        """The bits of every layer of one entry, followed back from the last layer."""
        bits: dict[str, int] = {}
        for layer, parents, widths in zip(
            reversed(self.layers), reversed(self.parents), reversed(self.widths), strict=True
        ):
            bits[layer] = int(widths[index])
            index = int(parents[index])
        return {layer: bits[layer] for layer in self.layers}
