"""Fronts and hypervolume: pure functions over arrays of points, one row per point.

`directions` says for each column "minimize" or "maximize". A point with a NaN is on no front and
adds no volume.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import moocore
import numpy as np
from numpy.typing import ArrayLike, NDArray

from slb_autotune.config.metrics import DIRECTIONS, METRICS, Objectives
from slb_autotune.errors import ConfigError

Floats = NDArray[np.float64]


def front(points: ArrayLike, directions: Sequence[str]) -> NDArray[np.bool_]:
    """Mask of the points that no other point dominates; equal points stand or fall together."""
    values, known = _minimised(points, directions)
    mask = np.zeros(len(values), dtype=bool)
    if known.any():
        mask[known] = moocore.is_nondominated(values[known], keep_weakly=True)
    return mask


def hypervolume(points: ArrayLike, reference: ArrayLike, directions: Sequence[str]) -> float:
    """Volume between the front and the reference point; points beyond the reference add none."""
    values, known = _minimised(points, directions)
    ref, _ = _minimised(np.atleast_2d(np.asarray(reference, dtype=np.float64)), directions)
    inside = values[known & (values < ref).all(axis=1)]
    return float(moocore.hypervolume(inside, ref=ref[0])) if len(inside) else 0.0


def reference_point(
    objectives: Objectives,
    float_costs: Mapping[str, float],
    results: Sequence[Mapping[str, float]],
) -> list[float]:
    """The point from which a study's hypervolume is measured; empty while it is not defined.

    0 for what is maximised. For a cost that is minimised, that of the float network: a network
    that saves nothing is worth nothing. For what training decides, such as a loss, twice the
    worst of the first results; the study keeps the point, so that it never moves.
    """
    point = []
    for metric, direction in objectives.items():
        if direction == "maximize":
            point.append(0.0)
        elif metric in float_costs:
            point.append(float(float_costs[metric]))
        elif results:
            point.append(2.0 * max(float(result[metric]) for result in results))
        else:
            return []
    return point


def hypervolume_share(
    points: ArrayLike, reference: Sequence[float], objectives: Objectives
) -> float:
    """Hypervolume as a share of the box between the reference point and the ideal."""
    if not len(reference):
        return 0.0
    ideals = [METRICS[name].ideal for name in objectives.metrics]
    box = math.prod(abs(r - i) or 1.0 for r, i in zip(reference, ideals, strict=True))
    return hypervolume(points, reference, objectives.directions) / box


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
