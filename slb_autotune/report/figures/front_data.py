"""The numbers behind the figures of the front, its hypervolume and its bits."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from slb_autotune.analysis.lessons import is_uniform
from slb_autotune.analysis.result import StudyResult
from slb_autotune.analysis.tables import layer_bits, numbers
from slb_autotune.config.metrics import COST
from slb_autotune.pareto import hypervolume_share
from slb_autotune.search.records import FINISHED

PAPER = "paper"  # how the source of the paper's schedules starts


def uniform_widths(runs: pd.DataFrame) -> list[int | None]:
    """The one bit-width of all weights of each run; None where widths differ or weights are float.

    Where no run mixes widths, and none was proposed for its width, there is nothing to tell
    apart, and all are None.
    """
    labels = runs["weight_bits"].astype(str)
    found = [_width(cell, label) for cell, label in zip(runs["bits"], labels, strict=True)]
    mixed = any(width == 0 for width in found)
    named = runs["source"].astype(str).str.startswith("uniform").any()
    return [width if width and width != 32 and (mixed or named) else None for width in found]


def _width(cell: str, label: str) -> int | None:
    """The width, 0 where widths are mixed, None where nothing is known."""
    widths = set(layer_bits(cell).values())
    if widths:
        return widths.pop() if len(widths) == 1 else 0
    if label == "mixed":
        return 0
    return int(label) if label.isdigit() else None


def kinds(runs: pd.DataFrame) -> list[str]:
    """What each run stands for in a figure of the front: `trial`, `uniform` or `paper`."""
    paper = runs["source"].astype(str).str.startswith(PAPER)
    return [
        "paper" if from_paper else "trial" if width is None else "uniform"
        for from_paper, width in zip(paper, uniform_widths(runs), strict=True)
    ]


def front_points(result: StudyResult) -> pd.DataFrame:
    """One row per trial with all objectives: their values, `row`, `trial`, `kind`, `width`,
    `stopped`, `on_front`.

    `row` is the position in `result.trials`; `kind` is trial, uniform or paper.
    """
    runs, metrics = result.trials, result.objectives.metrics
    finished = runs["status"].isin(FINISHED).to_numpy(dtype=bool)
    table = pd.DataFrame({name: numbers(runs, name) for name in metrics})
    known = table.notna().all(axis=1).to_numpy()
    table["row"] = np.arange(len(runs))
    table["trial"] = runs["trial"].to_numpy()
    table["kind"] = kinds(runs)
    table["width"] = pd.array(uniform_widths(runs), dtype="Int64")
    table["stopped"] = (runs["status"] == "stopped").to_numpy(dtype=bool)
    table["on_front"] = runs["on_front"].fillna(False).to_numpy(dtype=bool) & finished
    return table[known & (finished | table["stopped"])].reset_index(drop=True)


def front_line(points: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """The members of the front from left to right, equal ones once."""
    members = points.loc[points["on_front"], [x, y]]
    return members.drop_duplicates().sort_values([x, y], ignore_index=True)


def worst_shown(points: pd.DataFrame, y: str, sign: float) -> float:
    """The worst value that a figure of the front needs to show; `sign` is that of the objective.

    As far again beyond the worst of the front, of the best of each uniform width and of the
    paper's, as these lie apart (at least a tenth of all), but not beyond the worst of all.
    """
    cost = sign * points[y].to_numpy(dtype=np.float64)
    finished = points[~points["stopped"]].assign(_cost=cost[~points["stopped"].to_numpy()])
    marked = finished[finished["kind"] != "trial"]
    best = marked.groupby(["kind", "width"], dropna=False)["_cost"].min()
    needed = np.concatenate([finished.loc[finished["on_front"], "_cost"], best])
    if not len(needed):
        return float(sign * cost.max())
    apart = max(np.ptp(needed), 0.1 * np.ptp(cost))
    return float(sign * min(cost.max(), needed.max() + apart))


def hypervolume_curve(result: StudyResult) -> pd.DataFrame:
    """Hypervolume after each ended trial: `trials`, `trial`, `hypervolume`.

    It ends at `result.hypervolume`: only results that meet all constraints count.
    """
    ended = result.trials[result.trials["status"] != "running"]
    ended = ended.sort_values("trial", kind="stable")
    points = _objectives(result, ended)
    points[~ended.index.isin(result.results.index)] = np.nan
    rows, share = [], 0.0
    for position, trial in enumerate(ended["trial"]):
        if not np.isnan(points[position]).any():
            share = hypervolume_share(points[: position + 1], result.reference, result.objectives)
        rows.append((position + 1, trial, share))
    return pd.DataFrame(rows, columns=["trials", "trial", "hypervolume"])


def uniform_hypervolume(result: StudyResult) -> float | None:
    """Hypervolume of the uniform allocations alone; None where there are none, or no others."""
    uniform = is_uniform(result.results)
    if uniform.all() or not uniform.any():
        return None
    points = _objectives(result, result.results[uniform])
    return hypervolume_share(points, result.reference, result.objectives)


def _objectives(result: StudyResult, trials: pd.DataFrame) -> NDArray[np.float64]:
    """One row per trial, one column per objective, NaN for what is not a finite number."""
    return np.column_stack([numbers(trials, name) for name in result.objectives.metrics])


def front_bits(result: StudyResult, most: int = 14) -> pd.DataFrame:
    """Layer x member of the front, from the smallest to the largest; columns are rows of
    `result.trials`.

    Of more than `most` members, as many are taken evenly from end to end.
    """
    points = front_points(result)
    members = points.loc[points["on_front"], "row"].to_numpy()
    cells = {row: layer_bits(result.trials["bits"].iloc[row]) for row in members}
    size = numbers(result.trials, COST)
    order = sorted((row for row, bits in cells.items() if bits), key=lambda row: (size[row], row))
    if len(order) > most:
        chosen = np.linspace(0, len(order) - 1, most).round().astype(int)
        order = [order[i] for i in chosen]
    layers: dict[str, None] = {}
    for row in order:
        layers.update(dict.fromkeys(cells[row]))
    data = {int(row): [cells[row].get(layer, np.nan) for layer in layers] for row in order}
    return pd.DataFrame(data, index=list(layers), dtype=np.float64)
