"""The worker's process: trains trials one after the other and reports an epoch at a time.

Every phase trains in a folder of its own (`compressed`) or all in one (`prefix`), with a
checkpoint after every epoch, so that a killed trial resumes where it stopped. An attempt number
fences off a worker that outlived its driver. Nothing in here imports Optuna: it takes a second.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ray import tune

from slb_autotune import data
from slb_autotune.config.files import write_atomically
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import SlbError
from slb_autotune.search.early_stopping import Phase, phase_folder
from slb_autotune.training.device import (
    check_precision,
    isolated,
    keep_freed_memory,
    resolve_device,
)
from slb_autotune.training.evaluation import evaluate
from slb_autotune.training.loop import Trial
from slb_autotune.training.provenance import provenance
from slb_autotune.training.run_folder import RunFolder


@dataclass(frozen=True)
class Assignment:
    """What a worker needs to train a trial: plain values that travel between processes."""

    config: dict[str, Any]
    folder: str
    phases: tuple[Phase, ...]
    attempt: int
    costs: dict[str, float]
    test: bool = False

    def to_mapping(self) -> dict[str, Any]:
        """As Ray's config."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Assignment:
        """Back from Ray's config."""
        return cls(**{**values, "phases": tuple(Phase(**phase) for phase in values["phases"])})


class Superseded(SlbError):
    """A later attempt at this trial has begun."""


class TrialRun:
    """Trains one trial; `next_epoch` gives a row of metrics with where the trial stands.

    A row has `status` (running, rung, done or failed), `rung`, and where it failed a `reason`.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.config = TrialConfig.from_mapping(assignment.config, "trial")
        self.folder = Path(assignment.folder)
        self.phases = assignment.phases
        self.position = 0
        self.trial: Trial | None = None
        self.files: RunFolder | None = None
        self.folder.mkdir(parents=True, exist_ok=True)
        begin_attempt(self.folder, assignment.attempt)
        self._skip_finished()

    def next_epoch(self) -> dict[str, Any]:
        """Train one epoch, or report again a result that was reported before a kill."""
        try:
            return self._next_epoch()
        except Superseded:
            raise
        except SlbError as error:
            return self._failed(error.message)
        except MemoryError:
            return self._failed("out of memory")
        except Exception as error:  # a user's network may raise anything
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            write_atomically(self.folder / "error.txt", traceback.format_exc().encode())
            return self._failed("out of memory" if "out of memory" in reason else reason)

    @property
    def phase(self) -> Phase:
        """The phase that is being trained."""
        return self.phases[self.position]

    def _skip_finished(self) -> None:
        """Go to the last phase that was begun: the rungs before it were passed.

        A rung that was reached but not passed is reported again; its decision may have been lost.
        """
        begun = [phase for phase in self.phases if self._files(phase).config_path.exists()]
        if not begun:
            return
        state = self._files(begun[-1]).load_checkpoint()
        done = 0 if state is None else state["epoch"]
        self.position = next(
            position
            for position, phase in enumerate(self.phases)
            if phase.epochs == begun[-1].epochs and phase.until >= done
        )

    def _files(self, phase: Phase) -> RunFolder:
        return RunFolder(phase_folder(self.folder, phase, self.config.epochs))

    def _next_epoch(self) -> dict[str, Any]:
        phase = self.phase
        device = resolve_device(self.config.device)
        with isolated(self.config.threads, device):
            trial = self._begin(phase)
            if trial.epochs_done < phase.until:
                trial.run_epoch(trial.epochs_done)
                check_attempt(self.folder, self.assignment.attempt)
                assert self.files is not None
                self.files.save_checkpoint(trial.state())
        row: dict[str, Any] = dict(trial.history[-1])
        row |= self.assignment.costs | {"rung": phase.rung, "status": "running"}
        row["trial_epochs"] = self._epochs_spent()
        row["train_images"] = trial.images
        row["ran_on"] = self._ran_on()
        if trial.epochs_done >= phase.until:
            row["status"] = "done" if phase.final else "rung"
            row["seconds"] = sum(r["seconds"] for r in trial.history)
            self._leave(phase, trial)
        if row["status"] == "done" and self.assignment.test:
            row |= evaluate(self._files(phase).path, device=str(device))
        return row

    def _begin(self, phase: Phase) -> Trial:
        if self.trial is not None:
            return self.trial
        config = self.config.updated({"epochs": phase.epochs})
        device = resolve_device(config.device)
        check_precision(config, device)
        self.files = self._files(phase)
        self.files.open(config)
        self.trial = Trial(config, data.info(config.data), device)
        self.trial.start(self.files)
        return self.trial

    def _leave(self, phase: Phase, trial: Trial) -> None:
        if phase.final or self.phases[self.position + 1].epochs != phase.epochs:
            self.trial = None
        if not phase.final:
            self.position += 1

    def _epochs_spent(self) -> int:
        """Epochs of this phase's run and of the compressed runs before it."""
        earlier = {p.epochs for p in self.phases[: self.position] if p.epochs != self.phase.epochs}
        return sum(earlier) + (0 if self.trial is None else self.trial.epochs_done)

    def _failed(self, reason: str) -> dict[str, Any]:
        # The epoch that failed was spent too.
        spent = self._epochs_spent() + (self.trial is not None)
        row = {"status": "failed", "reason": reason, "rung": self.phase.rung}
        return row | {"seconds": 0.0, "trial_epochs": spent, "ran_on": self._ran_on()}

    def _ran_on(self) -> str:
        """As text: Ray flattens nested rows."""
        return json.dumps(provenance(self.config))


def begin_attempt(folder: Path, attempt: int) -> None:
    """Make this attempt the one that may write, unless a later one has begun."""
    if (folder / "attempt.json").exists():
        check_attempt(folder, attempt)
    write_atomically(folder / "attempt.json", json.dumps(attempt).encode())


def check_attempt(folder: Path, attempt: int) -> None:
    """Refuse to write where a later attempt has begun."""
    current = json.loads((folder / "attempt.json").read_text())
    if current > attempt:
        raise Superseded(f"attempt {attempt} of {folder.name} is superseded by attempt {current}")


class TrialTrainable(tune.Trainable):
    """Ray's handle on a worker: trains trials one after the other; a step is an epoch."""

    def setup(self, config: dict[str, Any]) -> None:
        keep_freed_memory()
        self.trial_run = TrialRun(Assignment.from_mapping(config["assignment"]))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        row = self.trial_run.next_epoch()
        return {**row, "done": row["status"] in ("done", "failed")}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """A trial's checkpoints are in its own folder."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Likewise: the folder is read when the run begins."""
