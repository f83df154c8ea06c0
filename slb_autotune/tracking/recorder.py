"""Records a study in MLflow while it runs: only what changed, and never waiting for it."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from slb_autotune.analysis.result import run_row, stages_of
from slb_autotune.config.study import NO_MLFLOW, StudyConfig
from slb_autotune.search.records import (
    ENDED,
    FINISHED,
    Outcome,
    Record,
    StudyListener,
    StudySnapshot,
    meets,
)
from slb_autotune.tracking.entries import StudyEntry, TrialEntry
from slb_autotune.tracking.tracker import Tracker

CLOSING_SECONDS = 60.0


class MlflowRecorder(StudyListener):
    """Follows a study and hands its changes to a tracker.

    `waiting` is, after the end, the number of trials that could not be sent; the study's next
    session sends them.
    """

    def __init__(self, config: StudyConfig) -> None:
        runs = Path(config.storage.folder)
        self.tracker = Tracker(
            config.storage.mlflow, runs, config.name, runs / "studies" / config.name
        )
        self.waiting = 0
        self._fixed = config.base().flat()
        self._started = False
        self._seen: dict[int, Record] = {}
        self._ended: set[int] = set()
        self._front: list[Record] = []
        self._fronts: list[tuple[int, pd.DataFrame]] = []
        self._hypervolume: list[tuple[int, float]] = []
        self._machines: dict[str, None] = {}  # in the order in which they were first used

    def on_start(self, study: StudySnapshot) -> None:
        """Send all trials, since MLflow may have missed some of an earlier session."""
        self.tracker.start()
        self._started = True
        self._submit(study, self._update(study))

    def on_change(self, study: StudySnapshot) -> None:
        """Hand over the trials that changed since the last time."""
        numbers = self._update(study)
        if numbers:
            self._submit(study, numbers)

    def on_end(self, outcome: Outcome) -> None:
        """Send the rest, and the study's status; a study that never started sends nothing."""
        if self._started:
            self._submit(outcome.study, self._update(outcome.study), outcome.status)
            self.waiting = self.tracker.close(CLOSING_SECONDS)

    def attach(self, path: Path, where: str = "report") -> None:
        """Give the study's own run a file; before the end."""
        self.tracker.attach(path, where)

    # -- what changed ------------------------------------------------------------------------

    def _update(self, study: StudySnapshot) -> set[int]:
        """The trials that changed since the last time, or joined or left the front."""
        # Records are frozen and replaced, so an unchanged one is the same object.
        changed = [r for n, r in study.records.items() if self._seen.get(n) is not r]
        self._seen.update((record.number, record) for record in changed)
        machines = [record.ran_on.get("machine") for record in changed]
        self._machines.update((machine, None) for machine in machines if machine)
        before = self._members
        self._follow(study, changed)
        return {record.number for record in changed} | (before ^ self._members)

    @property
    def _members(self) -> set[int]:
        return {record.number for record in self._front}

    def _follow(self, study: StudySnapshot, changed: list[Record]) -> None:
        """Keep the hypervolume after each ended trial, and the front after each that changed it.

        A session that resumes a study follows its earlier trials again, in the same order.
        """
        new = [r for r in changed if r.status in ENDED and r.number not in self._ended]
        # Optuna has not been told yet of a result that a killed driver stored: it ends later.
        for record in sorted(new, key=lambda r: (r.ended or math.inf, r.number)):
            self._ended.add(record.number)
            count = len(self._ended)
            if record.status in FINISHED and meets(record.metrics, study.constraints):
                before, self._front = self._front, study.front([*self._front, record])
                if self._front != before:
                    self._fronts.append((count, front_table(study, self._front)))
            self._hypervolume.append((count, study.hypervolume(self._front)))

    # -- what is handed over -----------------------------------------------------------------

    def _submit(self, study: StudySnapshot, numbers: set[int], status: str = "running") -> None:
        entries = [self._trial(study, study.records[number]) for number in sorted(numbers)]
        self.tracker.submit(self._study(study, status), entries)

    def _trial(self, study: StudySnapshot, record: Record) -> TrialEntry:
        on_front = record.number in self._members
        return TrialEntry(
            row=run_row(study.config.name, self._fixed, record, on_front),
            record=record,
            folder=study.trial_folder(record.number),
            stages=stages_of(study.config, record),
        )

    def _study(self, study: StudySnapshot, status: str) -> StudyEntry:
        tags = {
            "study": study.config.name,
            "version": str(study.sessions[-1]["version"]),
            "seed": str(study.config.seed),
            "machine": "; ".join(self._machines),
            "objectives": ", ".join(study.objectives.metrics),
        }
        return StudyEntry(
            name=study.config.name,
            folder=study.folder,
            started=study.sessions[0]["started"],
            hypervolume=list(self._hypervolume),
            fronts=list(self._fronts),
            tags=tags,
            status=status,
        )


def front_table(study: StudySnapshot, front: list[Record]) -> pd.DataFrame:
    """One row per member of a front: its number, its objectives and what was searched."""
    metrics = study.objectives.metrics
    rows = [{"trial": r.number, **{m: r.metrics[m] for m in metrics}, **r.params} for r in front]
    return pd.DataFrame(rows)


def make_recorder(config: StudyConfig) -> MlflowRecorder | None:
    """A recorder, unless the study wants none."""
    return None if config.storage.mlflow == NO_MLFLOW else MlflowRecorder(config)
