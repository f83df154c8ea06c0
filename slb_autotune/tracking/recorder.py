"""What a study tells MLflow while it runs: only what changed, and never waiting for it."""

from __future__ import annotations

import platform
from datetime import datetime
from pathlib import Path

import pandas as pd

from slb_autotune.analysis.frames import stages_of, weight_bits_of
from slb_autotune.config.study import NO_MLFLOW
from slb_autotune.search.ledger import Ledger, Record
from slb_autotune.tracking import StudyEntry, Tracker, TrialEntry
from slb_autotune.version import VERSION

CLOSING_SECONDS = 60.0
ENDED = ("done", "reused", "stopped", "failed")


class Recorder:
    """Follows the ledger and hands its changes to the tracker."""

    def __init__(self, ledger: Ledger, started: float) -> None:
        config = ledger.config
        self.ledger, self.started = ledger, started
        self.tracker = Tracker(
            config.storage.mlflow, Path(config.storage.folder), config.name, ledger.folder
        )
        self.ended: set[int] = set()
        self.front: list[Record] = []
        self.fronts: list[tuple[int, pd.DataFrame]] = []
        self.hypervolume: list[tuple[int, float]] = []
        self.first = True

    def start(self) -> None:
        """Begin: the first message has all trials, since an earlier session may owe some."""
        self.tracker.start()
        self.tell()

    def tell(self, status: str = "running") -> None:
        """Hand over the trials that changed since the last time."""
        changed = set(self.ledger.records) if self.first else self.ledger.take_changed()
        self.first = False
        before = {record.number for record in self.front}
        self._follow(self._newly_ended(changed))
        members = {record.number for record in self.front}
        changed |= before ^ members
        if changed or status != "running":
            records = [self.ledger.records[n] for n in sorted(changed)]
            self.tracker.submit(self._study(status), [self._trial(r, members) for r in records])

    def attach(self, path: Path, where: str = "report") -> None:
        """A file for the study's own run."""
        self.tracker.attach(path, where)

    def close(self, status: str) -> int:
        """Send the rest; how many trials could not be sent and wait for the next session."""
        self.tell(status)
        return self.tracker.close(CLOSING_SECONDS)

    def _newly_ended(self, changed: set[int]) -> list[Record]:
        """Trials that ended since the last time, in the order in which they did.

        A session that goes on follows those before it again: MLflow may have missed some.
        """
        found = [self.ledger.records[number] for number in sorted(changed - self.ended)]
        records = [record for record in found if record.status in ENDED]
        if len(records) > 1:
            trials = self.ledger.study.get_trials(deepcopy=False)
            records.sort(key=lambda r: trials[r.number].datetime_complete or datetime.max)
        return records

    def _follow(self, records: list[Record]) -> None:
        """Keep the hypervolume after each trial, and the front after each that changed it."""
        ledger = self.ledger
        results = {record.number for record in ledger.results()} if records else set()
        for record in records:
            self.ended.add(record.number)
            if record.number in results:
                before, self.front = self.front, ledger.front([*self.front, record])
                if self.front != before:
                    self.fronts.append((len(self.ended), self._front_table()))
            self.hypervolume.append((len(self.ended), ledger.hypervolume(self.front)))

    def _front_table(self) -> pd.DataFrame:
        metrics = self.ledger.goals.metrics
        rows = [
            {"trial": r.number, **{m: r.metrics[m] for m in metrics}, **r.params}
            for r in self.front
        ]
        return pd.DataFrame(rows)

    def _study(self, status: str) -> StudyEntry:
        ledger = self.ledger
        tags = {
            "study": ledger.config.name,
            "version": VERSION,
            "seed": str(ledger.config.seed),
            "machine": platform.node(),
            "objectives": ", ".join(ledger.goals.metrics),
        }
        return StudyEntry(
            name=ledger.config.name,
            folder=ledger.folder,
            started=self.started,
            hypervolume=list(self.hypervolume),
            fronts=list(self.fronts),
            tags=tags,
            status=status,
        )

    def _trial(self, record: Record, members: set[int]) -> TrialEntry:
        ledger = self.ledger
        return TrialEntry(
            number=record.number,
            status=record.status,
            reason=record.reason,
            source=record.source,
            attempt=record.attempt,
            config=record.config,
            params=record.params,
            metrics=record.metrics,
            bits=weight_bits_of(ledger, record.config),
            on_front=record.number in members,
            folder=ledger.trial_folder(record.number),
            started=record.started,
            stages=stages_of(ledger, record),
            epochs_spent=record.epochs,
        )


def make_recorder(ledger: Ledger, started: float) -> Recorder | None:
    """A recorder, unless the study wants none."""
    return None if ledger.config.storage.mlflow == NO_MLFLOW else Recorder(ledger, started)
