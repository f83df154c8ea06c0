"""What the harness costs: studies whose trials train nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from slb_autotune.config.files import write_atomically
from slb_autotune.config.study import StudyConfig
from slb_autotune.search.driver import run_study
from slb_autotune.search.records import FINISHED, StudyListener, StudySnapshot
from slb_autotune.search.worker import Assignment, TrialTrainable
from slb_autotune.tracking.recorder import MlflowRecorder

EPOCHS = 10
METRICS = 12


class IdleTrainable(TrialTrainable):
    """Reports ten epochs of twelve metrics and trains nothing."""

    def setup(self, config: dict[str, Any]) -> None:
        self.assignment = Assignment.from_mapping(config["assignment"])
        self.history: list[dict[str, float]] = []
        self.path = Path(self.assignment.folder) / "full" / "history.csv"
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def step(self) -> dict[str, Any]:
        epoch = len(self.history) + 1
        score = 50.0 + epoch / 10
        metrics = {f"metric_{i}": score + i for i in range(METRICS - 1)}
        self.history.append({"epoch": epoch, **metrics, "val_accuracy": score, "seconds": 0.01})
        # As in training: MLflow is sent what this file holds.
        write_atomically(self.path, pd.DataFrame(self.history).to_csv(index=False).encode())
        row = {**self.history[-1], **self.assignment.costs, "rung": 0, "trial_epochs": epoch}
        last = epoch == EPOCHS
        return {**row, "status": "done" if last else "running", "done": last}


class _Clock(StudyListener):
    """When the first trial was assigned: Ray's own start is not a trial's cost."""

    def __init__(self) -> None:
        self.began = time.perf_counter()

    def on_start(self, study: StudySnapshot) -> None:
        self.began = time.perf_counter()


@contextmanager
def _quiet_tracking() -> Iterator[None]:
    """Without warnings that members of the front are not packed: idle trials have no network."""
    log = logging.getLogger("slb_autotune.tracking")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def idle_study(trials: int, concurrent: int) -> pd.DataFrame:
    """Wall seconds of a trial in a study of so many; the journal and all files as ever."""
    with TemporaryDirectory() as folder, _quiet_tracking():
        config = StudyConfig.from_mapping(
            {
                "name": "idle",
                "recipe": "digits",
                "trial": {"epochs": EPOCHS},
                "space": {
                    "T_s": {"log": [0.001, 1]},
                    "T_e": {"log": [1, 10000]},
                    "schedule": ["linear", "sin", "exp", "cosine"],
                    "lr": {"log": [0.01, 0.5]},
                    "weight_bits": {"choices": [1, 2, 4], "per": "layer"},
                },
                "budget": {"trials": trials},
                "resources": {"concurrent": concurrent},
                "storage": {"folder": str(Path(folder))},
            }
        )
        clock = _Clock()
        recorder = MlflowRecorder(config)
        outcome = run_study(config, [clock, recorder], trainable=IdleTrainable)
        wall = time.perf_counter() - clock.began
        done = len(outcome.study.with_status(*FINISHED))
    return pd.DataFrame(
        [{"trials": done, "concurrent": concurrent, "wall_s": wall, "s_per_trial": wall / done}]
    )
