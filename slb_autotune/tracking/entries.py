"""What a study tells its tracker: a trial, and the study as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from slb_autotune.config.trial import TrialConfig


@dataclass(frozen=True)
class TrialEntry:
    """What the driver knows of a trial. `started` must stay the same over sessions.

    `stages` are the trial's phases in order, (folder, last epoch): they tell which rung an epoch
    belongs to.
    """

    number: int
    status: str
    reason: str
    source: str
    attempt: int
    config: TrialConfig
    params: dict[str, Any]
    metrics: dict[str, float]
    bits: dict[str, int]
    on_front: bool
    folder: Path
    started: float
    stages: tuple[tuple[str, int], ...]
    epochs_spent: int = 0


@dataclass(frozen=True)
class StudyEntry:
    """What the driver knows of the whole study.

    `started`, the beginning of its first session, tells it from an earlier study of its name.
    `hypervolume` and `fronts` say what they were after so many ended trials: the first after each,
    the second after each that changed it. Both have all of the study, from its first session on.
    """

    name: str
    folder: Path
    started: float
    hypervolume: list[tuple[int, float]]
    fronts: list[tuple[int, pd.DataFrame]]
    tags: dict[str, str]
    status: str = "running"
