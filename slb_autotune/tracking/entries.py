"""What a recorder hands to its tracker: a trial, and the study as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from slb_autotune.search.records import Record


@dataclass(frozen=True)
class TrialEntry:
    """One trial: its row in the table of runs, and its record.

    All tags, parameters and results come from `row`. `stages` are the trial's phases in order,
    (folder, last epoch): they say to which rung an epoch in `folder` belongs.
    """

    row: dict[str, Any]
    record: Record
    folder: Path
    stages: tuple[tuple[str, int], ...]

    @property
    def number(self) -> int:
        """The trial's number."""
        return self.record.number

    @property
    def is_running(self) -> bool:
        """Whether epochs may still be added."""
        return self.record.status == "running"

    @property
    def on_front(self) -> bool:
        """Whether it is a member of the study's front."""
        return bool(self.row["on_front"])


@dataclass(frozen=True)
class StudyEntry:
    """The whole study.

    `started`, the beginning of its first session, distinguishes it from an earlier study of its
    name. `hypervolume` and `fronts` are pairs of a number of ended trials and the value after
    them: the first has one pair per ended trial, the second one per change of the front. Both
    cover all of the study, from its first session on.
    """

    name: str
    folder: Path
    started: float
    hypervolume: list[tuple[int, float]]
    fronts: list[tuple[int, pd.DataFrame]]
    tags: dict[str, str]
    status: str = "running"
