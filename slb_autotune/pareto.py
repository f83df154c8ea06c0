"""Fronts and hypervolume: pure functions over arrays of points, a row a point.

`directions` says for each column "minimize" or "maximize". A point with a NaN is on no front and
adds no volume.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import moocore
import numpy as np
from numpy.typing import ArrayLike, NDArray

from slb_autotune.errors import ConfigError

DIRECTIONS = ("minimize", "maximize")

# The best that a metric can be, where that is known: it makes hypervolume a share of a box.
IDEAL = dict.fromkeys(("val_accuracy", "val_accuracy_top5", "test_accuracy"), 100.0)
IDEAL |= dict.fromkeys(("val_psnr", "test_psnr"), 50.0)

Floats = NDArray[np.float64]


def front(points: ArrayLike, directions: Sequence[str]) -> NDArray[np.bool_]:
    """Mask of the points that no other point dominates; equal points stand or fall together."""
    values, known = _minimised(points, directions)
    mask = np.zeros(len(values), dtype=bool)
    if known.any():
        mask[known] = moocore.is_nondominated(values[known], keep_weakly=True)
    return mask


def ranks(points: ArrayLike, directions: Sequence[str]) -> NDArray[np.int64]:
    """Non-dominated sorting: 0 for the front, 1 for the front without it, and so on.

    Points with a NaN come last, behind all others.
    """
    values, known = _minimised(points, directions)
    result = np.full(len(values), len(values), dtype=np.int64)
    if known.any():
        result[known] = moocore.pareto_rank(values[known])
    return result


def hypervolume(points: ArrayLike, reference: ArrayLike, directions: Sequence[str]) -> float:
    """Volume between the front and the reference point; points beyond the reference add none."""
    values, known = _minimised(points, directions)
    ref, _ = _minimised(np.atleast_2d(np.asarray(reference, dtype=np.float64)), directions)
    inside = values[known & (values < ref).all(axis=1)]
    return float(moocore.hypervolume(inside, ref=ref[0])) if len(inside) else 0.0


def contributions(points: ArrayLike, reference: ArrayLike, directions: Sequence[str]) -> Floats:
    """The hypervolume lost without each point; 0 for dominated, repeated and NaN points."""
    values, known = _minimised(points, directions)
    ref, _ = _minimised(np.atleast_2d(np.asarray(reference, dtype=np.float64)), directions)
    result = np.zeros(len(values))
    inside = np.flatnonzero(known & (values < ref).all(axis=1))
    if not len(inside):
        return result
    if values.shape[1] == 1:
        order = np.sort(values[inside, 0])
        second = order[1] if len(order) > 1 else ref[0, 0]
        best = inside[np.argmin(values[inside, 0])]
        result[best] = second - order[0]
        return result
    result[inside] = moocore.hv_contributions(values[inside], ref=ref[0], ignore_dominated=False)
    return result


def _minimised(points: ArrayLike, directions: Sequence[str]) -> tuple[Floats, NDArray[np.bool_]]:
    """Points as an array in which smaller is better, and which of them have no NaN."""
    for direction in directions:
        if direction not in DIRECTIONS:
            raise ConfigError(f"a direction must be one of {DIRECTIONS}; got {direction!r}")
    values: Any = np.asarray(points, dtype=np.float64)
    values = values.reshape(-1, len(directions)) if values.size == 0 else values
    if values.ndim != 2 or values.shape[1] != len(directions):
        raise ConfigError(
            f"points need {len(directions)} columns, one a direction; got shape {values.shape}"
        )
    signs = np.where(np.asarray(directions) == "maximize", -1.0, 1.0)
    return np.ascontiguousarray(values * signs), ~np.isnan(values).any(axis=1)
