"""The numbers behind the figures: small tables, computed from those of runs and epochs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from slb_autotune.analysis.tables import layer_bits
from slb_autotune.errors import ConfigError, nearest
from slb_autotune.pareto import IDEAL, front, hypervolume

Floats = NDArray[np.float64]
Histogram = tuple[int, ArrayLike, ArrayLike]

# With results; stopped and failed trials have none that counts.
FINISHED = ("done", "reused")

_PARAMETERS = ("T_s", "T_e", "lr")
_FEWEST_FOR_SURFACE = 12
_FEWEST_FOR_CORRELATION = 4


def numbers(frame: pd.DataFrame, column: str) -> Floats:
    """A column as floats, NaN for whatever is missing or not finite."""
    if column not in frame.columns:
        known = [str(name) for name in frame.columns]
        raise ConfigError(f"the table has no column {column!r}", nearest(column, known))
    values = pd.to_numeric(frame[column], errors="coerce").to_numpy(
        dtype=np.float64, na_value=np.nan
    )
    return np.where(np.isfinite(values), values, np.nan)


def axes_of(objectives: Mapping[str, str]) -> tuple[str, str]:
    """What to draw across and upwards: quality goes up, cost goes across."""
    names = list(objectives)
    upwards = next((name for name in names if objectives[name] == "maximize"), names[0])
    return next(name for name in names if name != upwards), upwards


def uniform_widths(runs: pd.DataFrame) -> list[int | None]:
    """The one bit-width of all weights of each run; None where widths differ or weights are float.

    Where no run mixes widths, and none was proposed for its width, there is nothing to tell
    apart, and all are None.
    """
    words = runs["weight_bits"].astype(str)
    found = [_width(cell, word) for cell, word in zip(runs["bits"], words, strict=True)]
    mixed = any(width == 0 for width in found)
    named = runs["source"].astype(str).str.startswith("uniform").any()
    return [width if width and width != 32 and (mixed or named) else None for width in found]


def _width(cell: str, word: str) -> int | None:
    """The width, 0 where widths are mixed, None where nothing is known."""
    widths = set(layer_bits(cell).values())
    if widths:
        return widths.pop() if len(widths) == 1 else 0
    if word == "mixed":
        return 0
    return int(word) if word.isdigit() else None


def front_points(runs: pd.DataFrame, objectives: Mapping[str, str]) -> pd.DataFrame:
    """A row a run with all objectives: their values, `row`, `trial`, `kind`, `width`, `stopped`,
    `on_front`.

    `row` is the place in `runs`; `kind` is trial, uniform or paper. Where runs say themselves
    that they are on a front, as those of a study with constraints do, no others are taken into
    this one. Stopped runs are on no front.
    """
    values = np.column_stack([numbers(runs, name) for name in objectives])
    widths = uniform_widths(runs)
    paper = runs["source"].astype(str).str.startswith("paper").to_numpy(dtype=bool)
    kinds = np.where(paper, "paper", np.where([w is not None for w in widths], "uniform", "trial"))
    finished = runs["status"].isin(FINISHED).to_numpy(dtype=bool)
    flagged = runs["on_front"].fillna(False).to_numpy(dtype=bool) & finished
    candidates = flagged if flagged.any() else finished
    known = np.where(candidates[:, None], values, np.nan)
    table = pd.DataFrame(values, columns=list(objectives))
    table["row"] = np.arange(len(runs))
    table["trial"] = runs["trial"].to_numpy()
    table["kind"] = kinds
    table["width"] = pd.array(widths, dtype="Int64")
    table["stopped"] = (runs["status"] == "stopped").to_numpy(dtype=bool)
    table["on_front"] = front(known, list(objectives.values()))
    shown = ~np.isnan(values).any(axis=1) & (finished | table["stopped"].to_numpy())
    return table[shown].reset_index(drop=True)


def front_line(points: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """The members of the front from left to right, equal ones once."""
    members = points.loc[points["on_front"], [x, y]]
    return members.drop_duplicates().sort_values([x, y], ignore_index=True)


def worst_shown(points: pd.DataFrame, y: str, direction: str) -> float:
    """The worst value that a figure of the front needs to show.

    As far again beyond the worst of the front, of the best of each uniform width and of the
    paper's, as these lie apart (at least a tenth of all), but not beyond the worst of all.
    """
    sign = -1.0 if direction == "maximize" else 1.0
    cost = sign * points[y].to_numpy(dtype=np.float64)
    finished = points[~points["stopped"]].assign(_cost=cost[~points["stopped"].to_numpy()])
    marked = finished[finished["kind"] != "trial"]
    best = marked.groupby(["kind", "width"], dropna=False)["_cost"].min()
    needed = np.concatenate([finished.loc[finished["on_front"], "_cost"], best])
    if not len(needed):
        return float(sign * cost.max())
    apart = max(np.ptp(needed), 0.1 * np.ptp(cost))
    return float(sign * min(cost.max(), needed.max() + apart))


def reference_point(runs: pd.DataFrame, objectives: Mapping[str, str]) -> dict[str, float]:
    """Where hypervolume is measured from: 0, or twice the worst of what is minimised."""
    finished = runs[runs["status"].isin(FINISHED)]
    point = {}
    for name, direction in objectives.items():
        values = numbers(finished, name)
        worst = 2 * np.nanmax(values) if np.isfinite(values).any() else 1.0
        point[name] = 0.0 if direction == "maximize" else float(worst)
    return point


def finished_points(runs: pd.DataFrame, objectives: Mapping[str, str]) -> Floats:
    """A row a run, a column an objective; NaN where a run did not finish."""
    values = np.column_stack([numbers(runs, name) for name in objectives])
    finished = runs["status"].isin(FINISHED).to_numpy(dtype=bool)
    return np.where(finished[:, None], values, np.nan)


def hypervolume_share(
    points: Floats, objectives: Mapping[str, str], reference: Mapping[str, float]
) -> float:
    """Hypervolume as a share of the box from the reference to the ideal."""
    corner = [reference[name] for name in objectives]
    sides = [abs(reference[name] - IDEAL.get(name, 0.0)) or 1.0 for name in objectives]
    return hypervolume(points, corner, list(objectives.values())) / math.prod(sides)


def hypervolume_curve(
    runs: pd.DataFrame,
    objectives: Mapping[str, str],
    reference: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Hypervolume after each ended trial: `study`, `trials`, `trial`, `hypervolume`."""
    corner = reference_point(runs, objectives) if reference is None else reference
    rows = []
    for study, ended in runs[runs["status"] != "running"].groupby("study", sort=False):
        ordered = ended.sort_values("trial", kind="stable")
        points = finished_points(ordered, objectives)
        share = 0.0
        for place, trial in enumerate(ordered["trial"]):
            if not np.isnan(points[place]).any():
                share = hypervolume_share(points[: place + 1], objectives, corner)
            rows.append((str(study), place + 1, trial, share))
    return pd.DataFrame(rows, columns=["study", "trials", "trial", "hypervolume"])


def uniform_hypervolume(
    runs: pd.DataFrame,
    objectives: Mapping[str, str],
    reference: Mapping[str, float] | None = None,
) -> float | None:
    """Hypervolume of the uniform allocations alone; None where there are none, or no others."""
    corner = reference_point(runs, objectives) if reference is None else reference
    uniform = np.array([width is not None for width in uniform_widths(runs)], dtype=bool)
    points = finished_points(runs, objectives)[uniform]
    if uniform.all() or np.isnan(points).any(axis=1).all():
        return None
    return hypervolume_share(points, objectives, corner)


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
    """A row a place that was tried: `x`, `y`, the `mean` of the results there, `count` of them.

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
    """Heights over a grid, and the hull of the places that they come from."""

    x: Floats
    y: Floats
    heights: Floats
    hull: Floats


def surface(points: pd.DataFrame, logs: tuple[bool, bool], resolution: int = 60) -> Surface | None:
    """A smooth surface through the means; None where places are too few or lie on a line.

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
    places = np.column_stack([np.log10(raw[:, i]) if logs[i] else raw[:, i] for i in (0, 1)])
    low, reach = places.min(axis=0), np.ptp(places, axis=0)
    if (reach == 0).any():
        return None
    unit = (places - low) / reach
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


def front_bits(runs: pd.DataFrame, objectives: Mapping[str, str], most: int = 14) -> pd.DataFrame:
    """Layer x member of the front, from the smallest to the largest; columns are rows of `runs`.

    Of more than `most` members, as many are taken evenly from end to end.
    """
    points = front_points(runs, objectives)
    members = points.loc[points["on_front"], "row"].to_numpy()
    cells = {row: layer_bits(runs["bits"].iloc[row]) for row in members}
    size = numbers(runs, "size_bytes")
    order = sorted((row for row, bits in cells.items() if bits), key=lambda row: (size[row], row))
    if len(order) > most:
        chosen = np.linspace(0, len(order) - 1, most).round().astype(int)
        order = [order[i] for i in chosen]
    layers: dict[str, None] = {}
    for row in order:
        layers.update(dict.fromkeys(cells[row]))
    data = {int(row): [cells[row].get(layer, np.nan) for layer in layers] for row in order}
    return pd.DataFrame(data, index=list(layers), dtype=np.float64)


def final_curves(epochs: pd.DataFrame) -> pd.DataFrame:
    """The epochs of each trial's longest run alone, in order.

    A rung that begins at epoch 1 again is a run of its own, and the last of them counts; rungs
    that go on where the one before stopped are stretches of one run.
    """
    parts = []
    for _, rows in epochs.groupby(["study", "trial"], sort=False, dropna=False):
        begins = rows.loc[rows["epoch"] == 1, "rung"].max()
        kept = rows if pd.isna(begins) else rows[rows["rung"] >= begins]
        parts.append(kept.sort_values(["rung", "epoch"], kind="stable"))
    return pd.concat(parts, ignore_index=True) if parts else epochs.iloc[:0]


def schedule_trials(runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The runs by which schedules can be compared.

    Those of the T_s, T_e and epochs that most schedules were tried with (of equals: the most
    runs, then the best result); the best run of each schedule where no two share them.
    """
    known = runs[(runs["schedule"] != "") & runs["status"].isin(FINISHED)].copy()
    known["_value"] = numbers(known, metric)
    known = known[known["_value"].notna()]
    keys = ["T_s", "T_e", "epochs"]
    groups = known.groupby(keys, sort=True)
    if groups.ngroups:
        counts = groups.agg(
            schedules=("schedule", "nunique"), runs=("schedule", "size"), best=("_value", "max")
        )
        first = counts.sort_values(["schedules", "runs", "best"], ascending=False, kind="stable")
        if first["schedules"].iloc[0] > 1 or known["schedule"].nunique() == 1:
            same = (known[keys] == list(first.index[0])).all(axis=1)
            return known[same].drop(columns="_value")
    best = known.sort_values("_value", ascending=False, kind="stable")
    return best.drop_duplicates("schedule").drop(columns="_value")


def schedule_curves(trials: pd.DataFrame, epochs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A row a schedule and epoch: `temperature`, and `mean`, `low`, `high` of the metric."""
    keys = ["study", "trial"]
    curves = final_curves(epochs).merge(trials[[*keys, "schedule"]], on=keys, how="inner")
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


def sensitivity_points(table: pd.DataFrame) -> pd.DataFrame:
    """`layer`, `bits`, `cost` and its `sign`: 1, 0 for no increase, or inf for a broken network.

    Float layers cost nothing by definition and are left out, as are costs that are no number.
    """
    cost = table["cost"].astype(float)
    points = table.assign(cost=cost)[["layer", "bits", "cost"]]
    points = points[(points["bits"] != 32) & points["cost"].notna()].reset_index(drop=True)
    points["sign"] = np.where(np.isinf(points["cost"]), np.inf, (points["cost"] > 0) * 1.0)
    return points


def rung_correlations(epochs: pd.DataFrame, metric: str, end: int) -> pd.DataFrame:
    """How well small budgets rank trials: `budget`, `epochs`, `spearman`, `low`, `high`, `count`.

    `prefix` is the run of `end` epochs cut short; `compressed` is a run that was planned for
    fewer. Both are compared with the last epoch of the long run. The interval of 95 % is that of
    Bonett and Wright: Fisher's z with a variance of (1 + r**2 / 2) / (n - 3).
    """
    final = final_curves(epochs)
    keys = ["study", "trial"]
    last = _at(final, metric, end)
    rows = [
        ("prefix", int(epoch), *_rank(_at(final, metric, epoch), last))
        for epoch in sorted(final.loc[final["epoch"] < end, "epoch"].unique())
    ]
    runs = epochs.groupby([*keys, "rung"])["epoch"].agg(["min", "max"]).reset_index()
    begun = runs[runs["min"] == 1]
    small = begun[begun["rung"] < begun.groupby(keys)["rung"].transform("max")]
    for _, rung in small.groupby("rung"):
        ends = rung.rename(columns={"max": "epoch"})[[*keys, "rung", "epoch"]]
        found = epochs.merge(ends, on=[*keys, "rung", "epoch"])
        own = pd.Series(numbers(found, metric), index=pd.MultiIndex.from_frame(found[keys]))
        rows.append(("compressed", int(ends["epoch"].max()), *_rank(own, last)))
    columns = ["budget", "epochs", "spearman", "low", "high", "count"]
    return pd.DataFrame(rows, columns=columns).dropna(ignore_index=True)


def _at(curves: pd.DataFrame, metric: str, epoch: int) -> pd.Series[float]:
    rows = curves[curves["epoch"] == epoch]
    index = pd.MultiIndex.from_frame(rows[["study", "trial"]])
    return pd.Series(numbers(rows, metric), index=index)


def _rank(early: pd.Series[float], late: pd.Series[float]) -> tuple[float, float, float, int]:
    """Spearman's rank correlation, its interval and the number of trials; NaN for too few."""
    both = pd.concat([early, late], axis=1, join="inner").dropna()
    count = len(both)
    if count < _FEWEST_FOR_CORRELATION or (both.nunique() < 2).any():
        return math.nan, math.nan, math.nan, count
    from slb_autotune.search.early_stopping import correlation

    r = correlation(0, 0, both.iloc[:, 0], both.iloc[:, 1]).spearman
    return (r, *interval(r, count), count)


def interval(r: float, count: int) -> tuple[float, float]:
    """The interval of 95 % of a rank correlation."""
    centre = math.atanh(max(-0.999999, min(0.999999, r)))
    reach = 1.96 * math.sqrt((1 + r**2 / 2) / (count - 3))
    return math.tanh(centre - reach), math.tanh(centre + reach)


def positive(values: Iterable[float]) -> list[float]:
    """Those that a log axis can show."""
    return [float(value) for value in values if value > 0 and math.isfinite(value)]
