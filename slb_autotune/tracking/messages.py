"""What MLflow is sent of a trial: its tags, its parameters, and its epochs from its folder."""

from __future__ import annotations

import csv
import io
import json
import math
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slb_autotune.analysis.tables import config_columns
from slb_autotune.tracking.entries import TrialEntry
from slb_autotune.tracking.store import digest_of, flag_word, milliseconds, split_tags
from slb_autotune.training.device import resolve_device
from slb_autotune.training.history import staged_epochs
from slb_autotune.version import VERSION

if TYPE_CHECKING:
    from mlflow.entities import Metric


@dataclass(frozen=True)
class Row:
    """An epoch of a trial: its place in the whole trial and its numbers."""

    step: int
    seconds: float  # since the trial began
    values: dict[str, float]


def read_rows(entry: TrialEntry) -> Iterator[Row]:
    """The epochs of all rungs in order, numbered through; `rung` and `epoch` are among them."""
    seconds = 0.0
    for step, row in enumerate(staged_epochs(entry.folder, entry.stages), start=1):
        values = {name: value for name, value in row.items() if math.isfinite(value)}
        seconds += values["seconds"]
        yield Row(step, seconds, values)


def history_times(entry: TrialEntry) -> Iterator[tuple[str, int]]:
    """What changes when an epoch was added."""
    for path in sorted(entry.folder.glob("*/history.csv")):
        yield path.parent.name, path.stat().st_mtime_ns


def entry_digest(entry: TrialEntry) -> str:
    """Changes with all that is sent at the end but the front, which moves on its own."""
    told = (entry.status, entry.reason, entry.source, entry.attempt, entry.config.digest)
    rest = (entry.params, entry.metrics, entry.bits, entry.epochs_spent)
    return digest_of(json.dumps((told, rest), sort_keys=True, default=str))


def trial_tags(entry: TrialEntry, study: str) -> dict[str, str]:
    """What it is, how it stands and where it ran."""
    return split_tags(
        {
            "kind": "trial",
            "study": study,
            "trial": str(entry.number),
            "status": entry.status,
            "reason": entry.reason,
            "source": entry.source,
            "attempt": str(entry.attempt),
            "on_front": flag_word(entry.on_front),
            "seed": str(entry.config.seed),
            "version": VERSION,
            "machine": f"{platform.system()} {platform.machine()}",
            "device": str(resolve_device(entry.config.device)),
            "command": f"slb-autotune train {study}:{entry.number}",
            "params": json.dumps(entry.params, sort_keys=True),
            "bits": json.dumps(entry.bits) if entry.bits else "",
        }
    )


def trial_params(entry: TrialEntry) -> dict[str, str]:
    """Settings under short names, and what the study searched; the bits as a digest."""
    values = {**entry.params, **config_columns(entry.config)}
    if entry.bits:
        values["bits_digest"] = digest_of(json.dumps(entry.bits, sort_keys=True))[:10]
    return {
        re.sub(r"[^\w./ -]", "_", name)[:250]: str(value)[:500]
        for name, value in values.items()
        if value is not None and value != ""
    }


def row_metrics(rows: Iterable[Row], start: int) -> Iterator[Metric]:
    """Epochs as metrics, each at the moment it ended."""
    from mlflow.entities import Metric

    for row in rows:
        for name, value in row.values.items():
            key = "epoch_seconds" if name == "seconds" else name
            yield Metric(key, value, start + milliseconds(row.seconds), row.step)


def end_metrics(entry: TrialEntry, rows: Sequence[Row], start: int) -> list[Metric]:
    """The result, a moment after the last epoch, so that it is the latest of its name.

    Older studies kept Ray's echo of the configuration (`config/order/...`) among their metrics.
    """
    from mlflow.entities import Metric

    last = rows[-1] if rows else Row(0, 0.0, {})
    told = {name: value for name, value in last.values.items() if name != "seconds"}
    values = {"epochs_spent": float(entry.epochs_spent), **entry.metrics}
    stamp = start + milliseconds(last.seconds) + 1
    return [
        Metric(name, float(value), stamp, last.step)
        for name, value in values.items()
        if "/" not in name and math.isfinite(value) and told.get(name) != value
    ]


def history_csv(rows: Sequence[Row]) -> str:
    """The epochs as a table, in text."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    text = io.StringIO()
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    table.writerows(row.values for row in rows)
    return text.getvalue()
