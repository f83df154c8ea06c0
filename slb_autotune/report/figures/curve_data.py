"""The numbers behind the figures of training itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from slb_autotune.analysis.budgets import final_curves
from slb_autotune.analysis.result import StudyResult
from slb_autotune.analysis.tables import numbers
from slb_autotune.config.metrics import METRICS, quality_metric
from slb_autotune.errors import ConfigError
from slb_autotune.search.records import FINISHED

Floats = NDArray[np.float64]
Histogram = tuple[int, ArrayLike, ArrayLike]  # epoch, counts, edges


def epoch_metric(result: StudyResult) -> str:
    """The metric of epochs that shows a study's quality: its objective, or that of its task."""
    measured = [m for m in result.objectives.measured if METRICS[m].stage == "epoch"]
    return (
        measured[0] if measured else quality_metric(super_resolution=result.base.super_resolution)
    )


def schedule_trials(runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The runs by which schedules can be compared.

    Those of the T_s, T_e and epochs that most schedules were tried with (of equals: the most
    runs, then the best result); the best run of each schedule where no two share them.
    """
    sign = METRICS[metric].sign
    known = runs[(runs["schedule"] != "") & runs["status"].isin(FINISHED)].copy()
    known["_cost"] = sign * numbers(known, metric)
    known = known[known["_cost"].notna()]
    keys = ["T_s", "T_e", "epochs"]
    groups = known.groupby(keys, sort=True)
    if groups.ngroups:
        counts = groups.agg(
            schedules=("schedule", "nunique"), runs=("schedule", "size"), cost=("_cost", "min")
        )
        order = {"schedules": False, "runs": False, "cost": True}
        first = counts.sort_values(list(order), ascending=list(order.values()), kind="stable")
        if first["schedules"].iloc[0] > 1 or known["schedule"].nunique() == 1:
            same = (known[keys] == list(first.index[0])).all(axis=1)
            return known[same].drop(columns="_cost")
    best = known.sort_values("_cost", kind="stable")
    return best.drop_duplicates("schedule").drop(columns="_cost")


def schedule_curves(trials: pd.DataFrame, epochs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One row per schedule and epoch: `temperature`, and `mean`, `low`, `high` of the metric."""
    curves = final_curves(epochs).merge(trials[["trial", "schedule"]], on="trial", how="inner")
    curves["_value"] = numbers(curves, metric)
    found = curves.groupby(["schedule", "epoch"], sort=True).agg(
        temperature=("temperature", "mean"),
        mean=("_value", "mean"),
        low=("_value", "min"),
        high=("_value", "max"),
    )
    return found.reset_index()


def spread_curves(curves: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Median and quartiles of a metric over trials: `epoch`, `low`, `median`, `high`."""
    table = pd.DataFrame({"epoch": curves["epoch"], "value": numbers(curves, metric)})
    groups = table.dropna().groupby("epoch", sort=True)["value"]
    found = groups.quantile(np.array([0.25, 0.5, 0.75])).unstack()
    found.columns = pd.Index(["low", "median", "high"])
    return found.reset_index()


def evenly(items: Sequence[Histogram], most: int) -> list[Histogram]:
    """At most so many of the items, evenly from the first to the last."""
    if len(items) <= most:
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, most).round().astype(int)]


def densities(histogram: Histogram) -> tuple[Floats, Floats] | None:
    """Edges and the share of weights per unit of weight; None for an empty histogram."""
    _, counts, edges = histogram
    heights = np.nan_to_num(np.asarray(counts, dtype=np.float64))
    ends = np.asarray(edges, dtype=np.float64)
    if len(ends) != len(heights) + 1:
        raise ConfigError(
            f"a histogram of {len(heights)} counts needs {len(heights) + 1} edges; got {len(ends)}"
        )
    total = heights.sum()
    return (ends, heights / (total * np.diff(ends))) if total > 0 else None
