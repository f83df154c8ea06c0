"""What a study tells MLflow while it runs: only what changed, and never waiting for it."""

from __future__ import annotations

import platform
from pathlib import Path

import pandas as pd

from slb_autotune.search.frames import weight_bits_of
from slb_autotune.search.ledger import Ledger, Record
from slb_autotune.search.rungs import phases
from slb_autotune.search.work import phase_folder
from slb_autotune.study_config import NO_MLFLOW
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
        self.hypervolume: list[tuple[int, float]] = []
        self.front: list[Record] = []
        self.ended = -1
        self.first = True

    def start(self) -> None:
        """Begin: the first message has all trials, since an earlier session may owe some."""
        self.tracker.start()
        self.tell()

    def tell(self, status: str = "running") -> None:
        """Hand over the trials that changed since the last time."""
        changed = set(self.ledger.records) if self.first else self.ledger.take_changed()
        self.first = False
        ended = len(self.ledger.with_status(*ENDED))
        if ended != self.ended:
            self.ended = ended
            before, self.front = {r.number for r in self.front}, self.ledger.front()
            changed |= before ^ {record.number for record in self.front}
            self.hypervolume.append((ended, self.ledger.hypervolume()))
        if changed or status != "running":
            members = {record.number for record in self.front}
            records = [self.ledger.records[n] for n in sorted(changed)]
            self.tracker.submit(self._study(status), [self._trial(r, members) for r in records])

    def attach(self, path: Path, where: str = "report") -> None:
        """A file for the study's own run."""
        self.tracker.attach(path, where)

    def close(self, status: str) -> int:
        """Send the rest; how many trials could not be sent and wait for the next session."""
        self.tell(status)
        return self.tracker.close(CLOSING_SECONDS)

    def _study(self, status: str) -> StudyEntry:
        ledger = self.ledger
        rows = [
            {"trial": r.number, **{m: r.metrics[m] for m in ledger.goals.metrics}, **r.params}
            for r in self.front
        ]
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
            hypervolume=self.hypervolume,
            front=pd.DataFrame(rows),
            tags=tags,
            status=status,
        )

    def _trial(self, record: Record, members: set[int]) -> TrialEntry:
        ledger = self.ledger
        folder = ledger.trial_folder(record.number)
        stages = phases(ledger.config.early_stopping, record.config.epochs)
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
            folder=folder,
            started=record.started,
            epochs_spent=record.epochs,
            stages=tuple(
                (phase_folder(folder, phase, record.config.epochs).name, phase.until)
                for phase in stages
            ),
        )


def make_recorder(ledger: Ledger, started: float) -> Recorder | None:
    """A recorder, unless the study wants none."""
    return None if ledger.config.storage.mlflow == NO_MLFLOW else Recorder(ledger, started)
