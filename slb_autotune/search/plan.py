"""search --dry-run: what a study would take, before it takes anything."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from slb_autotune import data
from slb_autotune.config.study import StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import ConfigError
from slb_autotune.search.early_stopping import phases
from slb_autotune.search.feasibility import Feasibility, check_study, concurrent_trials
from slb_autotune.search.space import Space
from slb_autotune.training.device import isolated, resolve_device
from slb_autotune.training.loop import Trial

DRAWS = 1000
MEASURED_SECONDS = 20.0  # or five steps, whichever is less


@dataclass(frozen=True)
class Plan:
    """What a study would take."""

    space_size: float
    feasible_share: float
    trials: int
    epochs_per_trial: int
    step_seconds: float
    steps_per_epoch: int
    slots: int
    memory_bytes: int
    disk_bytes: int

    @property
    def seconds(self) -> float:
        """Expected wall-clock time if no trial is stopped early."""
        epochs = self.trials * self.epochs_per_trial
        return epochs * self.steps_per_epoch * self.step_seconds / self.slots

    def lines(self) -> list[str]:
        """For people."""
        size = "without end (continuous ranges)"
        if math.isfinite(self.space_size):
            size = f"{self.space_size:,.0f} trials"
        return [
            f"space      {size}",
            f"feasible   {self.feasible_share:.1%} of {DRAWS} random draws",
            f"trials     {self.trials}, {self.slots} at once, {self.epochs_per_trial} epochs each "
            "if none is stopped early",
            f"step       {1e3 * self.step_seconds:.1f} ms measured, {self.steps_per_epoch} steps "
            "per epoch",
            f"time       about {duration(self.seconds)}, validation aside",
            f"memory     {self.memory_bytes * self.slots / 1e6:,.0f} MB for parameters, gradients "
            "and optimiser state of all slots",
            f"disk       {self.disk_bytes / 1e6:,.0f} MB of checkpoints",
        ]


def duration(seconds: float) -> str:
    """`40 seconds`, `11.2 minutes`, `5.0 hours` or `7.8 days`."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def plan(config: StudyConfig) -> Plan:
    """Measure one step and estimate the rest; nothing is written."""
    check_study(config)
    feasibility = Feasibility(config)
    space = Space(config, feasibility.layers)
    feasible, memory = _sample(config, space, feasibility)
    stages = phases(config.early_stopping, feasibility.base.epochs)
    epochs = sum({stage.epochs for stage in stages})
    trials = len(config.points) or config.budget.trials or 100
    if config.sampler.name == "grid":
        trials = min(trials, sum(1 for _ in space.grid()))
    step, steps = _measure_step(config, feasibility.base)
    return Plan(
        space_size=len(config.points) if config.points else space.size(),
        feasible_share=feasible,
        trials=trials,
        epochs_per_trial=epochs,
        step_seconds=step,
        steps_per_epoch=steps,
        slots=min(concurrent_trials(config), trials),
        memory_bytes=memory,
        disk_bytes=memory * trials,
    )


def _sample(config: StudyConfig, space: Space, feasibility: Feasibility) -> tuple[float, int]:
    """The share of feasible draws, and the largest training memory among them."""
    if config.points:
        points = [feasibility.base.updated(point) for point in config.points]
        return 1.0, max(feasibility.check(point).training_bytes for point in points)
    random = np.random.default_rng(config.seed)
    good, memory = 0, 0
    for _ in range(DRAWS):
        try:
            estimate = feasibility.check(space.config(space.draw(random)))
        except ConfigError:
            continue
        if not estimate.reason:
            good += 1
            memory = max(memory, estimate.training_bytes)
    return good / DRAWS, memory


def _measure_step(study: StudyConfig, base: TrialConfig) -> tuple[float, int]:
    config = base.updated(study.points[0]) if study.points else base
    device = resolve_device(config.device)
    with isolated(config.threads, device):
        trial = Trial(config, data.info(config.data), device)
        times: list[float] = []
        last = time.perf_counter()

        def tick(_: object) -> None:
            nonlocal last
            times.append(time.perf_counter() - last)
            last = time.perf_counter()
            if len(times) >= 5 or sum(times) > MEASURED_SECONDS:
                raise StopIteration

        with suppress(StopIteration):
            trial.train_epoch(0, tick)
    return min(times), trial.steps
