"""The work of one trial, epoch by epoch: its rungs, its folder, its end. It knows no Ray.

Every phase trains in a folder of its own (`compressed`) or all in one (`prefix`), each with a
checkpoint an epoch, so work that was killed goes on where it stopped. An attempt number fences
off a worker that outlived its driver.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slb_autotune import data
from slb_autotune.config.files import write_atomically
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import SlbError
from slb_autotune.search.early_stopping import Phase
from slb_autotune.training.device import check_precision, isolated, resolve_device
from slb_autotune.training.evaluation import evaluate
from slb_autotune.training.loop import Trial
from slb_autotune.training.run_folder import RunFolder


@dataclass(frozen=True)
class Order:
    """What a worker is told to do: plain values that travel between processes."""

    config: dict[str, Any]
    folder: str
    phases: tuple[dict[str, Any], ...]
    attempt: int
    costs: dict[str, float]
    test: bool = False

    def to_mapping(self) -> dict[str, Any]:
        """As Ray's config."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Order:
        """Back from Ray's config."""
        return cls(**{**values, "phases": tuple(values["phases"])})


class Superseded(SlbError):
    """Another attempt has taken this trial over."""


class TrialWork:
    """Trains one trial; `next_epoch` gives a row of metrics with where the trial stands.

    A row has `status` (running, rung, done or failed), `rung`, and where it failed a `reason`.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.config = TrialConfig.from_mapping(order.config, "trial")
        self.folder = Path(order.folder)
        self.phases = [Phase(**values) for values in order.phases]
        self.position = 0
        self.trial: Trial | None = None
        self.files: RunFolder | None = None
        self.folder.mkdir(parents=True, exist_ok=True)
        take_over(self.folder, order.attempt)
        self._skip_finished()

    def next_epoch(self) -> dict[str, Any]:
        """Train one epoch, or tell again a result that was told before a kill."""
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
        """Go to the last phase that was begun: what came before it was let pass.

        A rung that was reached but not left is told again; its decision may have been lost.
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
                check_attempt(self.folder, self.order.attempt)
                assert self.files is not None
                self.files.save_checkpoint(trial.state())
        row: dict[str, Any] = dict(trial.history[-1])
        row |= self.order.costs | {"rung": phase.rung, "status": "running"}
        row["trial_epochs"] = self._epochs_spent()
        row["train_images"] = trial.images
        if trial.epochs_done >= phase.until:
            row["status"] = "done" if phase.final else "rung"
            row["seconds"] = sum(r["seconds"] for r in trial.history)
            self._leave(phase, trial)
        if row["status"] == "done" and self.order.test:
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
        return row | {"seconds": 0.0, "trial_epochs": spent}


def phase_folder(trial: Path, phase: Phase, epochs: int) -> Path:
    """Where a phase trains: a folder of its own where its schedule is compressed."""
    return trial / (f"rung{phase.rung}" if phase.epochs < epochs else "full")


def take_over(folder: Path, attempt: int) -> None:
    """Make this attempt the one that may write, unless a later one has begun."""
    if (folder / "attempt.json").exists():
        check_attempt(folder, attempt)
    write_atomically(folder / "attempt.json", json.dumps(attempt).encode())


def check_attempt(folder: Path, attempt: int) -> None:
    """Refuse to write where a later attempt has taken over."""
    current = json.loads((folder / "attempt.json").read_text())
    if current > attempt:
        raise Superseded(f"attempt {attempt} of {folder.name} was taken over by {current}")
