"""Early stopping over several objectives that knows about schedules: pure decisions, no Ray.

A rung is a small budget at which trials are compared; the better share continues (asynchronous
successive halving). Two questions are answered here.

*What is compared.* Some objectives (size, bit-operations) are known before training. In a plain
non-dominated sorting the smallest network is never dominated, however bad: it would be immortal.
So a trial is beaten by another that is better in what training decides and at most a quarter worse
in what is known before it (`EPSILON`): the smallest network must hold its own against its
neighbours in size. Trials are then ranked by rounds of who is beaten by no one, ties by
hypervolume contribution.

*How a small budget is spent.* `prefix`: the first epochs of the full schedule; `compressed`: the
whole schedule in fewer epochs. With T rising over the run, a prefix of it compares networks whose
weights are still soft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slb_autotune.config.metrics import Objectives
from slb_autotune.config.study import StoppingConfig
from slb_autotune.pareto import contributions
from slb_autotune.training.seeds import derive_seed

EPSILON = 0.25


@dataclass(frozen=True)
class Phase:
    """A part of a trial that ends in a comparison, or, the last one, in the result.

    `epochs` is the length of the run it belongs to, `until` the epoch at which it ends.
    """

    rung: int
    epochs: int
    until: int
    final: bool


def phases(stopping: StoppingConfig, epochs: int) -> list[Phase]:
    """The phases of a trial: a run of its own for each rung, or parts of one run."""
    small = sorted({max(1, math.floor(share * epochs + 0.5)) for share in stopping.rungs})
    budgets = [budget for budget in small if budget < epochs]
    compressed = stopping.budget == "compressed"
    found = [
        Phase(rung, budget if compressed else epochs, budget, False)
        for rung, budget in enumerate(budgets)
    ]
    return [*found, Phase(len(budgets), epochs, epochs, True)]


def phase_folder(trial: Path, phase: Phase, epochs: int) -> Path:
    """Where a phase trains: a folder of its own where its schedule is compressed."""
    return trial / (f"rung{phase.rung}" if phase.epochs < epochs else "full")


def is_spared(stopping: StoppingConfig, seed: int, number: int) -> bool:
    """Whether this trial is one of the seeded share that is never stopped."""
    return derive_seed(seed, "spared", number, bits=32) / 2**32 < stopping.spared


def ranks(values: ArrayLike, objectives: Objectives) -> NDArray[np.int64]:
    """The rank of each result at a rung: how many are better, by rounds, then by contribution.

    Equal results have the same rank, so it does not depend on who arrived first. A contribution is
    that to the hypervolume of the trial's own round.
    """
    points = np.asarray(values, dtype=np.float64)
    rounds = _rounds(_beats(points, objectives))
    reference = _worst(points, objectives.directions)
    volume = np.zeros(len(points))
    for number in np.unique(rounds):
        same = rounds == number
        volume[same] = contributions(points[same], reference, objectives.directions)
    largest = volume.max(initial=0.0)
    # What differs by rounding alone is equal.
    steps = np.round(volume / largest * 1e9) if largest > 0 else volume
    better = (rounds[:, None] < rounds) | ((rounds[:, None] == rounds) & (steps[:, None] > steps))
    return np.asarray(better.sum(axis=0), dtype=np.int64)


def rank_deficit(
    values: Sequence[Sequence[float]], mine: int, objectives: Objectives, stopping: StoppingConfig
) -> float:
    """By which share of the rung's results the trial misses being kept; 0 where it is kept."""
    count = len(values)
    if count < stopping.minimum or all(objectives.known):
        return 0.0
    kept = max(1, math.ceil(stopping.keep * count))
    rank = int(ranks(values, objectives)[mine])
    return max(0.0, (rank + 1 - kept) / count)


def _beats(points: NDArray[np.float64], objectives: Objectives) -> NDArray[np.bool_]:
    """beats[i, j]: i is no worse than j in what training decides, better in some of it, and
    close enough in what is known before it."""
    signs = np.array([objectives.sign(metric) for metric in objectives.metrics])
    costs = points * signs
    known = np.array(objectives.known)
    measured = np.nan_to_num(costs[:, ~known], nan=np.inf)
    no_worse = (measured[:, None, :] <= measured[None, :, :]).all(axis=2)
    better = (measured[:, None, :] < measured[None, :, :]).any(axis=2)
    allowed = costs[:, known] + EPSILON * np.abs(costs[:, known])
    close = (costs[:, None, known] <= allowed[None, :, :]).all(axis=2)
    return np.asarray(no_worse & better & close)


def _rounds(beats: NDArray[np.bool_]) -> NDArray[np.int64]:
    """0 for those beaten by no one, 1 for those beaten by no one else once they are gone, ..."""
    rounds = np.full(len(beats), -1, dtype=np.int64)
    number = 0
    while (rounds < 0).any():
        left = rounds < 0
        unbeaten = left & ~beats[left].any(axis=0)
        rounds[unbeaten] = number
        number += 1
    return rounds


def _worst(points: NDArray[np.float64], directions: Sequence[str]) -> NDArray[np.float64]:
    """A reference point a little worse than the worst of every objective."""
    low, high = np.nanmin(points, axis=0), np.nanmax(points, axis=0)
    margin = 0.1 * np.where(high > low, high - low, np.maximum(np.abs(high), 1.0))
    return np.where(np.array(directions) == "maximize", low - margin, high + margin)
