"""search --dry-run: what a study would take, before it takes anything."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from slb_autotune import data
from slb_autotune.config.study import StudyConfig
from slb_autotune.errors import ConfigError
from slb_autotune.search.driver import check_feasible, slots_of
from slb_autotune.search.early_stopping import phases
from slb_autotune.search.ledger import Ledger
from slb_autotune.search.storage import blank_ledger
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
    epochs_a_trial: int
    step_seconds: float
    steps_an_epoch: int
    slots: int
    memory_bytes: int
    disk_bytes: int

    @property
    def seconds(self) -> float:
        """Expected wall-clock time if no trial is stopped early."""
        epochs = self.trials * self.epochs_a_trial
        return epochs * self.steps_an_epoch * self.step_seconds / self.slots

    def lines(self) -> list[str]:
        """For people."""
        size = "without end (continuous ranges)"
        if math.isfinite(self.space_size):
            size = f"{self.space_size:,.0f} trials"
        return [
            f"space      {size}",
            f"feasible   {self.feasible_share:.1%} of {DRAWS} random draws",
            f"trials     {self.trials}, {self.slots} at once, {self.epochs_a_trial} epochs each "
            "if none is stopped early",
            f"step       {1e3 * self.step_seconds:.1f} ms measured, {self.steps_an_epoch} steps "
            "an epoch",
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
    ledger = blank_ledger(config)
    check_feasible(ledger)
    feasible, memory = _sample(ledger)
    stages = phases(config.early_stopping, ledger.base.epochs)
    epochs = sum({stage.epochs for stage in stages})
    trials = len(config.points) or config.budget.trials or 100
    if config.sampler.name == "grid":
        trials = min(trials, sum(1 for _ in ledger.space.grid()))
    step, steps = _measure_step(ledger)
    return Plan(
        ledger.space.size() if not config.points else len(config.points),
        feasible,
        trials,
        epochs,
        step,
        steps,
        min(slots_of(config), trials),
        memory,
        memory * trials,
    )


def _sample(ledger: Ledger) -> tuple[float, int]:
    """The share of feasible draws, and the largest training memory among them."""
    if ledger.config.points:
        configs = [ledger.base.updated(point) for point in ledger.config.points]
        return 1.0, max(ledger.costs.cost(config).training_bytes for config in configs)
    random = np.random.default_rng(ledger.config.seed)
    good, memory = 0, 0
    for _ in range(DRAWS):
        try:
            cost = ledger.costs.cost(ledger.space.config(ledger.space.draw(random)))
        except ConfigError:
            continue
        if not ledger.violations(cost)[1]:
            good += 1
            memory = max(memory, cost.training_bytes)
    return good / DRAWS, memory


def _measure_step(ledger: Ledger) -> tuple[float, int]:
    config = ledger.base
    if ledger.config.points:
        config = config.updated(ledger.config.points[0])
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
