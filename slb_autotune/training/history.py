"""The history of a run: its epochs as a table, read without torch."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

HISTORY_FILE = "history.csv"


def read_history(path: Path) -> list[dict[str, float]]:
    """The rows of a history to the last bit, without blank cells; empty where there is none."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: float(text) for name, text in row.items() if text} for row in rows]


def staged_epochs(trial: Path, stages: Iterable[tuple[str, int]]) -> Iterator[dict[str, float]]:
    """The epochs of a trial's stages in order; `rung` says to which stage each belongs.

    A stage is (folder, last epoch). One in the folder of an earlier stage continues it.
    """
    begun: dict[str, int] = {}
    for rung, (name, until) in enumerate(stages):
        for row in read_history(trial / name / HISTORY_FILE):
            if begun.get(name, 0) < row["epoch"] <= until:
                yield {"rung": float(rung), **row}
        begun[name] = until
