"""Invented runs and epochs for tests of figures, and what a figure shows."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from slb_autotune.analysis.result import StudyResult
from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS, typed
from tests.report.invented import invented_result

LAYERS = ("layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1", "layer3.0.conv1")
WEIGHTS = np.array([2000, 2000, 8000, 32000])
SCHEDULES = ("linear", "sin", "exp")


def invented_run(trial: int, rng: np.random.Generator, **changes: Any) -> dict[str, Any]:
    bits = rng.choice([1, 2, 4], len(LAYERS)).tolist()
    T_s, T_e, lr = 10 ** rng.uniform([-3, 0, -2], [0, 4, 0])
    row = {
        "study": "invented",
        "trial": trial,
        "status": "done",
        "source": "sampler",
        "method": "slb",
        "schedule": SCHEDULES[trial % 3],
        "T_s": T_s,
        "T_e": T_e,
        "lr": lr,
        "epochs": 6,
        "val_accuracy": 80 + 2 * np.mean(bits) - (np.log10(T_e) - 2) ** 2 + rng.normal(),
        "params": json.dumps({"T_s": T_s, "T_e": T_e, "lr": lr}),
        "layer_bits": bits,
        **changes,
    }
    bits = row.pop("layer_bits")
    return {
        **row,
        "weight_bits": str(bits[0]) if len(set(bits)) == 1 else "mixed",
        "bits": json.dumps(dict(zip(LAYERS, bits, strict=True))),
        "size_bytes": int((WEIGHTS * bits).sum() / 8) + 1000,
    }


def invented_runs(count: int = 40) -> pd.DataFrame:
    """Three uniform allocations, the paper's schedule, then trials, some stopped or failed."""
    rng = np.random.default_rng(7)
    rows = [
        invented_run(i, rng, source=f"uniform {b} bit", layer_bits=[b] * 4)
        for i, b in enumerate((1, 2, 4))
    ]
    paper = {"source": "paper", "T_s": 0.01, "T_e": 10.0, "layer_bits": [1] * 4}
    rows.append(invented_run(3, rng, **paper))
    for trial in range(4, count):
        status = {0: "stopped", 5: "failed"}.get(trial % 9, "done")
        changes = {"val_accuracy": math.nan} if status == "failed" else {}
        mixed = [1, 2, 4, int(rng.choice([1, 2, 4]))]
        rng.shuffle(mixed)
        rows.append(invented_run(trial, rng, status=status, layer_bits=mixed, **changes))
    return typed(rows, RUN_COLUMNS)


def invented_epochs(runs: pd.DataFrame, *, compressed: bool = False) -> pd.DataFrame:
    """Two epochs of rung 0 and four more; or a run of two epochs, then one of six."""
    rng = np.random.default_rng(3)
    rows = []
    for run in runs.to_dict("records"):
        stretches = [(0, 1, 2), (1, 1, 6)] if compressed else [(0, 1, 2), (1, 3, 6)]
        for rung, first, last in stretches:
            total = last if compressed else 6
            rows += [
                {
                    "study": run["study"],
                    "trial": run["trial"],
                    "rung": rung,
                    "epoch": epoch,
                    "temperature": run["T_s"] * (run["T_e"] / run["T_s"]) ** (epoch / total),
                    "val_accuracy": run["val_accuracy"] * (1 - 0.5**epoch) + rng.normal(),
                    "quantization_gap": 0.5**epoch,
                    "frozen_fraction": epoch / total,
                    "flip_rate": 0.1 / epoch,
                }
                for epoch in range(first, last + 1)
            ]
    return typed(rows, EPOCH_COLUMNS)


def changed(
    result: StudyResult,
    trials: pd.DataFrame,
    metrics: tuple[str, ...] = ("val_accuracy", "size_bytes"),
) -> StudyResult:
    """The study with other trials: its front and its reference point follow from them."""
    fresh = trials.assign(on_front=False).astype(RUN_COLUMNS)
    return invented_result(fresh, result.epochs, metrics, name="invented")


def rendered(figure: Figure) -> Figure:
    """The figure, laid out and drawn with every warning an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.draw_without_rendering()
    return figure


def words(figure: Figure) -> str:
    """All that is written in a figure, without breaks and formulas."""
    found = [text.get_text() for text in figure.findobj(Text) if text.get_visible()]
    return " ".join(found).replace("\n", " ").replace("$", "").strip()


def dots(axes: Axes) -> list[PathCollection]:
    return [item for item in axes.collections if isinstance(item, PathCollection)]


def dot_count(axes: Axes) -> int:
    return sum(len(item.get_offsets()) for item in dots(axes))


def poor_trials(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Runs in which something is missing."""
    return {
        "none": runs.iloc[:0],
        "one": runs.iloc[4:5],
        "two": runs.iloc[:2],
        "equal": pd.concat([runs.iloc[4:5]] * 3, ignore_index=True),
        "no values": runs.assign(val_accuracy=np.nan),
        "infinite": runs.assign(val_accuracy=np.inf),
        "failed": runs.assign(status="failed", val_accuracy=np.nan),
        "stopped": runs.assign(status="stopped"),
        "running": runs.assign(status="running", val_accuracy=np.nan),
        "no sizes": runs.assign(size_bytes=pd.array([None] * len(runs), dtype="Int64")),
        "hostile": runs.assign(study="a $ b_{ $^", schedule="exp"),
    }


KINDS = list(poor_trials(invented_runs(6)))


def poor(result: StudyResult, kind: str) -> StudyResult:
    """The study with such runs."""
    return changed(result, poor_trials(result.trials)[kind])


def sensitivities(costs: list[tuple[float, ...]]) -> pd.DataFrame:
    """Three widths of each layer with these costs."""
    rows = [
        (layer, bits, 0.0, cost, 10)
        for layer, row in zip(LAYERS, costs, strict=True)
        for bits, cost in zip((1, 2, 32), row, strict=True)
    ]
    return pd.DataFrame(rows, columns=["layer", "bits", "loss", "cost", "bytes"])
