"""A study as plain records, for what follows or reads it: no Ray and no Optuna in here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slb_autotune.config.metrics import Objectives
from slb_autotune.config.study import Constraint, StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import InputError, nearest
from slb_autotune.pareto import front, hypervolume_share

FINISHED = ("done", "reused")  # with a result at the full budget
ENDED = (*FINISHED, "stopped", "failed")


@dataclass(frozen=True)
class Record:
    """One trial as the study knows it.

    `costs` and `bits` (layer -> bits of its weights) are known before training; `ran_on` is what
    the worker recorded of itself. `started` and `ended` are POSIX seconds, 0 where unknown.
    """

    number: int
    status: str
    config: TrialConfig
    digest: str
    params: dict[str, Any]
    costs: dict[str, float] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    rungs: dict[int, dict[str, float]] = field(default_factory=dict)
    ran_on: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    epochs: int = 0
    attempt: int = 1
    source: str = "sampler"
    reused_from: int | None = None
    started: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True)
class StudySnapshot:
    """A study at one moment; `records` shows the trials as they are when it is read."""

    config: StudyConfig
    folder: Path
    objectives: Objectives
    constraints: tuple[Constraint, ...]
    records: Mapping[int, Record]
    reference: tuple[float, ...] = ()
    infeasible: int = 0
    sessions: tuple[dict[str, Any], ...] = ()

    def with_status(self, *statuses: str) -> list[Record]:
        """Records of these statuses, by number."""
        return sorted(
            (r for r in self.records.values() if r.status in statuses), key=lambda r: r.number
        )

    def results(self) -> list[Record]:
        """Trials with a result that meets all constraints."""
        return [r for r in self.with_status(*FINISHED) if meets(r.metrics, self.constraints)]

    def front(self, records: Iterable[Record] | None = None) -> list[Record]:
        """The Pareto front of all results or of these, ordered by the last objective.

        A result that was reused stands for the trial that it comes from, which is in it once.
        """
        chosen = self.results() if records is None else records
        done = [record for record in chosen if record.status == "done"]
        if not done:
            return []
        values = [self.objectives.values(record.metrics) for record in done]
        members = zip(done, values, front(values, self.objectives.directions), strict=True)
        ordered = sorted((value[::-1], r.number, r) for r, value, on in members if on)
        return [record for _, _, record in ordered]

    def hypervolume(self, records: Iterable[Record] | None = None) -> float:
        """Hypervolume of all results or of these, as a share of the box."""
        chosen = self.results() if records is None else records
        values = [self.objectives.values(record.metrics) for record in chosen]
        return hypervolume_share(values, self.reference, self.objectives) if values else 0.0

    def epochs_spent(self) -> int:
        """Epochs of all trials, in every rung."""
        return sum(record.epochs for record in self.records.values())

    def trial_folder(self, number: int) -> Path:
        """Where a trial keeps its checkpoints and its history."""
        return trial_folder(self.folder, number)


@dataclass(frozen=True)
class Outcome:
    """How a session of a study ended: done, interrupted or failed."""

    study: StudySnapshot
    status: str
    seconds: float
    note: str = ""  # why it ended, where it is not the budget

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped before its budget was spent."""
        return self.status == "interrupted"


class StudyListener:
    """Follows a study while it runs; this one does nothing."""

    def on_start(self, study: StudySnapshot) -> None:
        """Trials are about to run."""

    def on_change(self, study: StudySnapshot) -> None:
        """Something changed."""

    def on_end(self, outcome: Outcome) -> None:
        """No trial runs any more; the study is still held."""


def study_folder(runs: Path, name: str) -> Path:
    """The folder of a study in the run folder, whether it exists or not."""
    return runs / "studies" / name


def find_study(runs: Path, name: str) -> Path:
    """The folder of a study that has been run."""
    folder = study_folder(runs, name)
    if not (folder / "study.yaml").exists():
        known = [path.name for path in folder.parent.glob("*/")]
        raise InputError(f"there is no study {name!r}", nearest(name, known))
    return folder


def trial_folder(study: Path, number: int) -> Path:
    """The folder of a trial in that of its study."""
    return study / "trials" / f"{number:05d}"


def meets(metrics: Mapping[str, float], constraints: Iterable[Constraint]) -> bool:
    """Whether all constraints hold; one on a metric that is missing does not."""
    return all(c.violation(metrics.get(c.metric, math.nan)) <= 0 for c in constraints)
