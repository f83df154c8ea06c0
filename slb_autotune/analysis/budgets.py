"""How well a small budget ranks trials, from the epochs of trials that went to the end."""

from __future__ import annotations

import math

import pandas as pd

from slb_autotune.analysis.statistics import spearman, spearman_interval
from slb_autotune.analysis.tables import numbers

FEWEST_TRIALS = 4
KEYS = ["study", "trial"]


def final_curves(epochs: pd.DataFrame) -> pd.DataFrame:
    """The epochs of each trial's longest run alone, in order.

    A rung that starts at epoch 1 again is a run of its own, and the last of them counts; rungs
    that continue where the one before stopped are parts of one run.
    """
    parts = []
    for _, rows in epochs.groupby(KEYS, sort=False, dropna=False):
        first = rows.loc[rows["epoch"] == 1, "rung"].max()
        kept = rows if pd.isna(first) else rows[rows["rung"] >= first]
        parts.append(kept.sort_values(["rung", "epoch"], kind="stable"))
    return pd.concat(parts, ignore_index=True) if parts else epochs.iloc[:0]


def budget_correlations(epochs: pd.DataFrame, metric: str, end: int) -> pd.DataFrame:
    """How well small budgets rank trials: `budget`, `epochs`, `spearman`, `low`, `high`, `count`.

    `prefix` is the run of `end` epochs cut short; `compressed` is a run that was planned for
    fewer. Both are compared with the last epoch of the long run.
    """
    final = final_curves(epochs)
    last = _at(final, metric, end)
    rows = [
        ("prefix", int(epoch), *_correlation(_at(final, metric, epoch), last))
        for epoch in sorted(final.loc[final["epoch"] < end, "epoch"].unique())
    ]
    runs = epochs.groupby([*KEYS, "rung"])["epoch"].agg(["min", "max"]).reset_index()
    whole = runs[runs["min"] == 1]
    small = whole[whole["rung"] < whole.groupby(KEYS)["rung"].transform("max")]
    for _, rung in small.groupby("rung"):
        ends = rung.rename(columns={"max": "epoch"})[[*KEYS, "rung", "epoch"]]
        found = epochs.merge(ends, on=[*KEYS, "rung", "epoch"])
        own = pd.Series(numbers(found, metric), index=pd.MultiIndex.from_frame(found[KEYS]))
        rows.append(("compressed", int(ends["epoch"].max()), *_correlation(own, last)))
    columns = ["budget", "epochs", "spearman", "low", "high", "count"]
    return pd.DataFrame(rows, columns=columns).dropna(ignore_index=True)


def _at(curves: pd.DataFrame, metric: str, epoch: int) -> pd.Series[float]:
    rows = curves[curves["epoch"] == epoch]
    return pd.Series(numbers(rows, metric), index=pd.MultiIndex.from_frame(rows[KEYS]))


def _correlation(
    early: pd.Series[float], late: pd.Series[float]
) -> tuple[float, float, float, int]:
    """Spearman's rank correlation, its interval and the number of trials; NaN for too few."""
    both = pd.concat([early, late], axis=1, join="inner").dropna()
    count = len(both)
    r = spearman(both.iloc[:, 0], both.iloc[:, 1]) if count >= FEWEST_TRIALS else math.nan
    if math.isnan(r):
        return math.nan, math.nan, math.nan, count
    return (r, *spearman_interval(r, count), count)
