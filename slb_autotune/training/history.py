"""The history of a run, one row per epoch; reading it imports no torch."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

HISTORY_FILE = "history.csv"


def read_history(path: Path) -> list[dict[str, float]]:
    """The rows of a history, bit-exact and without blank cells; empty without a file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: float(text) for name, text in row.items() if text} for row in rows]


def staged_epochs(trial: Path, stages: Iterable[tuple[str, int]]) -> Iterator[dict[str, float]]:
    """The epochs of a trial's stages in order; `rung` is the index of the stage.

    A stage is (folder, last epoch). A stage in the folder of an earlier one continues its run.
    """
    done: dict[str, int] = {}
    for rung, (name, until) in enumerate(stages):
        for row in read_history(trial / name / HISTORY_FILE):
            if done.get(name, 0) < row["epoch"] <= until:
                yield {"rung": float(rung), **row}
        done[name] = until
