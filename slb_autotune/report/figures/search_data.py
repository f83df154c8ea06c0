"""The numbers behind the figures of how a search went."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from slb_autotune.analysis.tables import numbers
from slb_autotune.search.records import FINISHED

Floats = NDArray[np.float64]

_PARAMETERS = ("T_s", "T_e", "lr")
_FEWEST_FOR_SURFACE = 12


def with_params(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs with each searched number that is no column yet as a column."""
    rows = [json.loads(cell) if cell else {} for cell in runs["params"]]
    searched = pd.DataFrame(rows, index=runs.index)
    new = [name for name in searched.columns if name not in runs.columns]
    return pd.concat([runs, searched[new]], axis=1)


def searched_numbers(runs: pd.DataFrame) -> list[str]:
    """The numeric parameters that vary: T_s, T_e and lr first, then others by their reach."""
    frame = with_params(runs)
    others = [str(name) for name in frame.columns if name not in runs.columns]
    found = [name for name in others if "bits" not in name and _reach(frame, name) > 1]
    found.sort(key=lambda name: -_reach(frame, name))
    return [name for name in _PARAMETERS if _reach(frame, name) > 1] + found


def _reach(frame: pd.DataFrame, name: str) -> float:
    """Largest over smallest; 1 where nothing varies, 2 where a ratio has no meaning."""
    values = numbers(frame, name)
    values = np.unique(values[~np.isnan(values)])
    if len(values) < 2:
        return 1.0
    return float(values[-1] / values[0]) if values[0] > 0 else 2.0


def response_points(runs: pd.DataFrame, objective: str, x: str, y: str) -> pd.DataFrame:
    """One row per point that was tried: `x`, `y`, the `mean` of the results there, their `count`.

    The mean is NaN where every trial failed. Stopped and running trials are left out.
    """
    frame = with_params(runs)
    ended = frame[frame["status"].isin((*FINISHED, "failed"))]
    table = pd.DataFrame(
        {"x": numbers(ended, x), "y": numbers(ended, y), "value": numbers(ended, objective)}
    )
    table.loc[~ended["status"].isin(FINISHED).to_numpy(dtype=bool), "value"] = np.nan
    groups = table.dropna(subset=["x", "y"]).groupby(["x", "y"])["value"]
    return groups.agg(mean="mean", count="size").reset_index()


@dataclass(frozen=True)
class Surface:
    """Heights over a grid, and the hull of the points that they come from."""

    x: Floats
    y: Floats
    heights: Floats
    hull: Floats


def surface(points: pd.DataFrame, logs: tuple[bool, bool], resolution: int = 60) -> Surface | None:
    """A smooth surface through the means; None where points are too few or lie on a line.

    A thin-plate spline with a little smoothing, on axes that are logarithms where `logs` says so
    and are scaled to [0, 1]. It never leaves the range of what was measured, and outside the hull
    it is a guess that should not be shown.
    """
    from scipy.interpolate import RBFInterpolator
    from scipy.spatial import ConvexHull, QhullError

    known = points.dropna(subset=["mean"])
    if len(known) < _FEWEST_FOR_SURFACE:
        return None
    raw = known[["x", "y"]].to_numpy(dtype=np.float64)
    positions = np.column_stack([np.log10(raw[:, i]) if logs[i] else raw[:, i] for i in (0, 1)])
    low, reach = positions.min(axis=0), np.ptp(positions, axis=0)
    if (reach == 0).any():
        return None
    unit = (positions - low) / reach
    values = known["mean"].to_numpy(dtype=np.float64)
    try:
        hull = ConvexHull(unit)
        spline = RBFInterpolator(unit, values, kernel="thin_plate_spline", smoothing=0.01)
    except (QhullError, np.linalg.LinAlgError):
        return None
    line = np.linspace(0, 1, resolution)
    grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    heights = np.clip(spline(grid), values.min(), values.max()).reshape(resolution, resolution)
    x, y = (low[i] + line * reach[i] for i in (0, 1))
    return Surface(10**x if logs[0] else x, 10**y if logs[1] else y, heights, raw[hull.vertices])


def top_importances(shares: pd.DataFrame, most: int = 10) -> pd.DataFrame:
    """Objective x parameter, the parameters that matter most on the whole first; what is left
    over is summed into one column."""
    known = shares.astype(float).where(np.isfinite(shares.astype(float)), 0.0)
    order = known.mean(axis=0).sort_values(ascending=False, kind="stable").index
    kept = known[order[:most]].copy()
    rest = order[most:]
    if len(rest):
        kept[f"{len(rest)} others"] = known[rest].sum(axis=1)
    return kept


def sensitivity_points(table: pd.DataFrame) -> pd.DataFrame:
    """`layer`, `bits`, `cost` and its `sign`: 1, 0 for no increase, or inf for a broken network.

    Float layers cost nothing by definition and are left out, as are costs that are no number.
    """
    cost = table["cost"].astype(float)
    points = table.assign(cost=cost)[["layer", "bits", "cost"]]
    points = points[(points["bits"] != 32) & points["cost"].notna()].reset_index(drop=True)
    points["sign"] = np.where(np.isinf(points["cost"]), np.inf, (points["cost"] > 0) * 1.0)
    return points


def positive(values: Iterable[float]) -> list[float]:
    """Those that a log axis can show."""
    return [float(value) for value in values if value > 0 and math.isfinite(value)]
