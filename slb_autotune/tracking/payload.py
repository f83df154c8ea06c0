"""What MLflow is sent of a trial: tags and parameters from its row, epochs from its folder."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slb_autotune.analysis.tables import IDENTITY_COLUMNS, PROVENANCE_COLUMNS, SETTING_COLUMNS
from slb_autotune.config.metrics import METRICS
from slb_autotune.tracking.entries import TrialEntry
from slb_autotune.tracking.store import as_tag, digest_of, milliseconds, split_tags
from slb_autotune.training.history import staged_epochs

if TYPE_CHECKING:
    from mlflow.entities import Metric

# Which columns of a row are what in MLflow. The seed is a tag too; `epochs_spent` is a tag while
# a trial runs and a metric at its end.
TAG_COLUMNS = tuple(
    name
    for name in (*IDENTITY_COLUMNS, "seed", "bits", *PROVENANCE_COLUMNS)
    if name != "run_id"  # MLflow's own
)
PARAM_COLUMNS = tuple(name for name in SETTING_COLUMNS if name not in ("bits", "train_images"))
KNOWN_METRICS = tuple(metric.name for metric in METRICS.of_stage("before"))
END_METRICS = (
    "epochs_spent",
    "train_images",
    *(name for name in METRICS if name not in KNOWN_METRICS),
)


@dataclass(frozen=True)
class Epoch:
    """An epoch of a trial: its position in the whole trial and its numbers."""

    step: int
    seconds: float  # since the trial began
    values: dict[str, float]


def read_epochs(entry: TrialEntry) -> Iterator[Epoch]:
    """The epochs of all rungs in order, numbered through; `rung` and `epoch` are among them."""
    seconds = 0.0
    for step, row in enumerate(staged_epochs(entry.folder, entry.stages), start=1):
        values = {name: value for name, value in row.items() if math.isfinite(value)}
        seconds += values["seconds"]
        yield Epoch(step, seconds, values)


def history_times(entry: TrialEntry) -> Iterator[tuple[str, int]]:
    """What changes when an epoch was added."""
    for path in sorted(entry.folder.glob("*/history.csv")):
        yield path.parent.name, path.stat().st_mtime_ns


def entry_digest(entry: TrialEntry) -> str:
    """Changes with all that is sent at the end but the front, which changes on its own."""
    row = {name: value for name, value in entry.row.items() if name != "on_front"}
    return digest_of(json.dumps(row, sort_keys=True, default=str))


def trial_tags(entry: TrialEntry) -> dict[str, str]:
    """What the trial is, its status, and what its worker recorded of itself."""
    columns = {name: as_tag(entry.row.get(name)) for name in TAG_COLUMNS}
    return split_tags({"kind": "trial", **columns})


def trial_params(entry: TrialEntry) -> dict[str, str]:
    """Settings under short names, and what the study searched; the bits as a digest."""
    settings: dict[str, Any] = {name: entry.row.get(name) for name in PARAM_COLUMNS}
    values = {**entry.record.params, **settings}
    if entry.record.bits:
        values["bits_digest"] = digest_of(json.dumps(entry.record.bits, sort_keys=True))[:10]
    return {
        re.sub(r"[^\w./ -]", "_", name)[:250]: str(value)[:500]
        for name, value in values.items()
        if value is not None and value != ""
    }


def known_metrics(entry: TrialEntry, start: int) -> list[Metric]:
    """What is known before training, at step 0."""
    from mlflow.entities import Metric

    values = _numbers(entry, KNOWN_METRICS)
    return [Metric(name, value, start, 0) for name, value in values.items()]


def epoch_metrics(epochs: Iterable[Epoch], start: int) -> Iterator[Metric]:
    """Epochs as metrics, each at the moment it ended."""
    from mlflow.entities import Metric

    for epoch in epochs:
        for name, value in epoch.values.items():
            key = "epoch_seconds" if name == "seconds" else name
            yield Metric(key, value, start + milliseconds(epoch.seconds), epoch.step)


def end_metrics(entry: TrialEntry, epochs: Sequence[Epoch], start: int) -> list[Metric]:
    """The result, a moment after the last epoch, so that it is the latest of its name."""
    from mlflow.entities import Metric

    last = epochs[-1] if epochs else Epoch(0, 0.0, {})
    logged = {name: value for name, value in last.values.items() if name != "seconds"}
    stamp = start + milliseconds(last.seconds) + 1
    return [
        Metric(name, value, stamp, last.step)
        for name, value in _numbers(entry, END_METRICS).items()
        if logged.get(name) != value
    ]


def _numbers(entry: TrialEntry, names: Iterable[str]) -> dict[str, float]:
    found = {name: entry.row.get(name) for name in names}
    return {n: float(v) for n, v in found.items() if v is not None and math.isfinite(v)}


def history_csv(epochs: Sequence[Epoch]) -> str:
    """The epochs as a table, in text."""
    names = list(dict.fromkeys(name for epoch in epochs for name in epoch.values))
    text = io.StringIO()
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    table.writerows(epoch.values for epoch in epochs)
    return text.getvalue()
