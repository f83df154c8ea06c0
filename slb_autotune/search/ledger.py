"""The books of a study, on the driver alone: what to try next, and how everything ended.

Optuna's storage is the one truth. Whatever a study must know after it was killed stands there, in
the attributes of its trials; what is kept in memory is read from it when the study is opened.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from slb_autotune import data
from slb_autotune.config.study import StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.cost import Cost, CostModel
from slb_autotune.errors import ConfigError, SlbError
from slb_autotune.pareto import IDEAL, front, hypervolume
from slb_autotune.search.early_stopping import (
    Correlation,
    Goals,
    correlation,
    deficit,
    is_spared,
    phases,
)
from slb_autotune.search.samplers import make_sampler
from slb_autotune.search.space import Space
from slb_autotune.search.worker import Order
from slb_autotune.training.device import free_memory, resolve_device
from slb_autotune.training.seeds import derive_seed

MOST_INFEASIBLE_DRAWS = 500
MOST_REPEATED_DRAWS = 200  # tried before: then the space was tried whole
SAME_FAILURES = 3


@dataclass(frozen=True)
class Record:
    """One trial as the study knows it."""

    number: int
    status: str
    config: TrialConfig
    digest: str
    params: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)
    rungs: dict[int, dict[str, float]] = field(default_factory=dict)
    reason: str = ""
    epochs: int = 0
    attempt: int = 1
    source: str = "sampler"
    reused_from: int | None = None
    started: float = 0.0  # POSIX seconds


class StudyStopped(SlbError):
    """The study cannot go on."""


class Ledger:
    """Asks Optuna for trials, keeps the results, decides at rungs, and knows the front."""

    def __init__(
        self, config: StudyConfig, study: optuna.Study, folder: Path, *, reads_only: bool = False
    ) -> None:
        self.reads_only = reads_only
        self.config, self.study, self.folder = config, study, folder
        self.base = config.base()
        self.info = data.info(self.base.data)
        self.costs = CostModel(self.info)
        self.layers = self.costs.layers(self.base)
        self.space = Space(config, self.layers)
        self.goals = Goals(tuple(config.goals()), tuple(config.goals().values()))
        self.constraints = config.parsed_constraints
        self.records: dict[int, Record] = {}
        self._changed: set[int] = set()
        self.infeasible = 0
        self.memory = free_memory(resolve_device(self.base.device))
        self._read()

    # -- opening ---------------------------------------------------------------------------

    def _read(self) -> None:
        for trial in self.study.get_trials(deepcopy=False):
            status = trial.user_attrs.get("status")
            if status == "infeasible":
                self.infeasible += 1
            elif status is not None:
                self.records[trial.number] = _record(trial)

    def enqueue(self, values: Iterable[Mapping[str, Any]], source: str) -> None:
        """Put trials at the head of the queue, each once."""
        trials = self.study.get_trials(deepcopy=False)
        # Optuna's own skip_if_exists compares with every trial anew: 24 s for 300 grid points.
        seen = {
            _key(t.system_attrs["fixed_params"])
            for t in trials
            if "fixed_params" in t.system_attrs
        }
        for value in values:
            if _key(value) not in seen:
                seen.add(_key(value))
                self.study.enqueue_trial(dict(value), user_attrs={"source": source})

    # -- asking ----------------------------------------------------------------------------

    def next_order(self) -> tuple[int, Order] | None:
        """The next trial to train, or None where the study has spent its budget or its space."""
        self._tell_half_told()
        repeated = 0
        while not self.exhausted() and repeated < MOST_REPEATED_DRAWS:
            trial = self._ask()
            if trial is None:
                return None
            number = trial.number
            config = self._config_of(trial)
            if config is None:
                continue
            earlier = self._same_as(config)
            if earlier is not None:
                self._repeat(trial, config, earlier)
                repeated += 1
                continue
            self._issue(trial, config)
            return number, self.order(number)
        return None

    def _ask(self) -> optuna.Trial | None:
        """A new trial, or one whose parameters were being drawn when the study was killed."""
        half_drawn = [
            trial
            for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            if "status" not in trial.user_attrs
        ]
        waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if not half_drawn and not waiting and self._list_is_done():
            return None
        number = (
            half_drawn[0].number
            if half_drawn
            else waiting[0].number
            if waiting
            else len(self.study.get_trials(deepcopy=False))
        )
        self.study.sampler = make_sampler(self.config.sampler, self.config.seed, number)
        if half_drawn:
            return optuna.Trial(self.study, half_drawn[0]._trial_id)
        return self.study.ask()

    def _tell_half_told(self) -> None:
        """A driver killed between a status and its `tell` left the trial running in Optuna."""
        for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            status = frozen.user_attrs.get("status", "running")
            if status == "running":
                continue
            trial = self._trial(frozen.number)
            if status in ("done", "reused"):
                self.study.tell(trial, values=self._values(frozen.user_attrs["metrics"]))
            elif status == "failed":
                self.study.tell(trial, state=TrialState.FAIL)
            else:
                if status == "stopped":
                    _constrain(trial, "stopped early", frozen.user_attrs["missing"])
                self.study.tell(trial, state=TrialState.PRUNED)

    def _list_is_done(self) -> bool:
        """A list of points or a grid ends with its last entry."""
        if self.config.points:
            return len(self.records) >= len(self.config.points)
        return self.config.sampler.name == "grid"

    def _config_of(self, trial: optuna.Trial) -> TrialConfig | None:
        """The trial's configuration, or None where it is infeasible; that teaches the sampler."""
        if self.config.points:
            return self.base.updated(self.config.points[len(self.records)])
        values = self.space.suggest(trial)
        try:
            config = self.space.config(values)
        except ConfigError as error:
            self._refuse(trial, {"valid": 1.0}, error.message)
            return None
        violations, reason = self.violations(self.costs.cost(config))
        if reason:
            self._refuse(trial, violations, reason)
            return None
        return config

    def violations(self, cost: Cost) -> tuple[dict[str, float], str]:
        """Constraints that the bits alone decide: name -> violation, and which one is broken."""
        found: dict[str, float] = {}
        reason = ""
        for constraint in self.constraints:
            if constraint.known_before:
                value = cost.metrics()[constraint.metric]
                found[str(constraint)] = constraint.violation(value)
                if found[str(constraint)] > 0:
                    side = "above" if constraint.upper else "below"
                    reason = f"{constraint.metric} is {value:g}, {side} {constraint.limit:g}"
        if self.memory is not None and cost.training_bytes > self.memory:
            found["memory"] = cost.training_bytes / self.memory - 1
            reason = f"training needs {cost.training_bytes / 1e9:.1f} GB"
        return found, reason

    def _refuse(self, trial: optuna.Trial, violations: Mapping[str, float], reason: str) -> None:
        for name, violation in violations.items():
            _constrain(trial, name, violation)
        trial.set_user_attr("reason", reason)
        trial.set_user_attr("status", "infeasible")
        self.study.tell(trial, state=TrialState.PRUNED)
        self.infeasible += 1
        if self.infeasible >= MOST_INFEASIBLE_DRAWS and not self.records:
            raise StudyStopped(
                f"the first {self.infeasible} draws are all infeasible; the last: {reason}",
                "loosen the constraints, or narrow the space to what can meet them.",
            )

    def _same_as(self, config: TrialConfig) -> Record | None:
        """The trial that had this very configuration; in a list of points, only a finished one."""
        digest = config.digest
        same = [r for r in self.records.values() if r.digest == digest]
        finished = [record for record in same if record.status == "done"]
        others = [] if self.config.points else [r for r in same if r.status != "reused"]
        return next(iter(finished + others), None)

    def _repeat(self, trial: optuna.Trial, config: TrialConfig, earlier: Record) -> None:
        """Nothing is trained twice: a result is reused, anything else is drawn in vain."""
        if earlier.status != "done":
            reason = f"the same as trial {earlier.number}, which is {earlier.status}"
            self._refuse(trial, {"stopped early": 1.0}, reason)
            return
        trial.set_user_attr("config", config.to_mapping())
        trial.set_user_attr("reused_from", earlier.number)
        self._complete(trial, earlier.metrics, "reused")
        self._refresh(trial.number)

    def _issue(self, trial: optuna.Trial, config: TrialConfig) -> None:
        trial.set_user_attr("config", config.to_mapping())
        trial.set_user_attr("attempt", 1)
        trial.set_user_attr("status", "running")
        self._refresh(trial.number)

    def order(self, number: int) -> Order:
        """What a worker is told to do for a trial."""
        record = self.records[number]
        stages = phases(self.config.early_stopping, record.config.epochs)
        return Order(
            config=record.config.to_mapping(),
            folder=str(self.trial_folder(number).absolute()),
            phases=tuple(asdict(phase) for phase in stages),
            attempt=record.attempt,
            costs=self.costs.cost(record.config).metrics(),
            test=self.config.confirms is not None,
        )

    def trial_folder(self, number: int) -> Path:
        """Where a trial keeps its checkpoints and its history."""
        return self.folder / "trials" / f"{number:05d}"

    def take_up(self, number: int) -> Order:
        """An unfinished trial of an earlier session, as a new attempt."""
        trial = self._trial(number)
        trial.set_user_attr("attempt", self.records[number].attempt + 1)
        self._refresh(number)
        return self.order(number)

    # -- telling ---------------------------------------------------------------------------

    def record_rung(self, number: int, rung: int, row: Mapping[str, Any]) -> bool:
        """Keep a rung's result; whether the trial may go on."""
        trial = self._trial(number)
        trial.set_user_attr(f"rung/{rung}", numbers_of(row))
        trial.set_user_attr("epochs", row["trial_epochs"])
        self._refresh(number)
        if is_spared(self.config.early_stopping, self.config.seed, number):
            return True
        peers = [r for r in self.records.values() if rung in r.rungs]
        values = [self._values(r.rungs[rung]) for r in peers]
        mine = next(i for i, r in enumerate(peers) if r.number == number)
        missing = deficit(values, mine, self.goals, self.config.early_stopping)
        if missing <= 0:
            return True
        trial.set_user_attr("reason", f"rung {rung}: behind by {missing:.0%} of the trials")
        trial.set_user_attr("missing", missing)
        trial.set_user_attr("status", "stopped")
        # Pruned with a violated constraint: the sampler never models it as good. Only once the
        # status says so: a trial that is taken up again may yet be let pass.
        _constrain(trial, "stopped early", missing)
        self.study.tell(trial, state=TrialState.PRUNED)
        self._refresh(number)
        return False

    def finish(self, number: int, row: Mapping[str, Any]) -> None:
        """The trial ended by itself, well or badly."""
        if self.records[number].status != "running":
            return
        trial = self._trial(number)
        if row["status"] == "failed":
            if "trial_epochs" in row:
                trial.set_user_attr("epochs", row["trial_epochs"])
            self.fail(number, row["reason"])
            return
        metrics = numbers_of(row)
        values = self._values(metrics)
        if not all(map(math.isfinite, values)):
            found = dict(zip(self.goals.metrics, values, strict=True))
            self.fail(number, f"an objective is not a number: {found}")
            return
        trial.set_user_attr("epochs", row["trial_epochs"])
        self._complete(trial, metrics, "done")
        self._refresh(number)

    def fail(self, number: int, reason: str) -> None:
        """The trial failed for good."""
        trial = self._trial(number)
        trial.set_user_attr("reason", reason)
        trial.set_user_attr("status", "failed")
        self.study.tell(trial, state=TrialState.FAIL)
        self._refresh(number)

    def _complete(self, trial: optuna.Trial, metrics: Mapping[str, float], status: str) -> None:
        for constraint in self.constraints:
            value = metrics.get(constraint.metric, math.nan)
            violation = constraint.violation(value)
            kept = violation if math.isfinite(violation) else 1.0
            _constrain(trial, str(constraint), kept)
        _constrain(trial, "stopped early", 0.0)
        trial.set_user_attr("metrics", dict(metrics))
        trial.set_user_attr("status", status)
        self.study.tell(trial, values=self._values(metrics))

    def _values(self, metrics: Mapping[str, float]) -> list[float]:
        return [float(metrics.get(name, math.nan)) for name in self.goals.metrics]

    def _trial(self, number: int) -> optuna.Trial:
        identity = self.study._storage.get_trial_id_from_study_id_trial_number(
            self.study._study_id, number
        )
        # Made without drawing: the sampler is not asked again for a trial that has its values.
        self.study.sampler = optuna.samplers.RandomSampler(seed=derive_seed(number, bits=32))
        return optuna.Trial(self.study, identity)

    def take_changed(self) -> set[int]:
        """Trials that changed since this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    def _refresh(self, number: int) -> None:
        self._changed.add(number)
        self.records[number] = _record(self.study.get_trials(deepcopy=False)[number])

    # -- what is known ---------------------------------------------------------------------

    def with_status(self, *statuses: str) -> list[Record]:
        """Records of these statuses, by number."""
        return sorted(
            (r for r in self.records.values() if r.status in statuses), key=lambda r: r.number
        )

    def results(self) -> list[Record]:
        """Trials with a result that holds all constraints."""
        return [
            record
            for record in self.with_status("done", "reused")
            if all(
                c.violation(record.metrics.get(c.metric, math.nan)) <= 0 for c in self.constraints
            )
        ]

    def front(self, records: Iterable[Record] | None = None) -> list[Record]:
        """The Pareto front of all results or of these, ordered by the last objective; equal
        trials once."""
        chosen = self.results() if records is None else records
        done = [record for record in chosen if record.status == "done"]
        if not done:
            return []
        mask = front([self._values(r.metrics) for r in done], self.goals.directions)
        members = [record for record, on in zip(done, mask, strict=True) if on]
        return sorted(members, key=lambda r: self._values(r.metrics)[::-1])

    def reference(self) -> list[float]:
        """The frozen reference point of hypervolume: nothing better than doing nothing."""
        kept = self.study.user_attrs.get("reference")
        if kept is not None:
            return list(kept)
        largest = self.costs.cost(self.base.updated({"weight_bits": 32, "activation_bits": 32}))
        worst = {**largest.metrics(), "average_weight_bits": 32.0}
        results = self.with_status("done", "reused")
        point = []
        for metric, direction in zip(*self._pairs(), strict=True):
            if direction == "maximize":
                point.append(0.0)
            elif metric in worst:
                point.append(float(worst[metric]))
            elif not results:
                return []
            else:
                point.append(2 * max(r.metrics[metric] for r in results))
        if not self.reads_only:
            self.study.set_user_attr("reference", point)
        return point

    def _pairs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.goals.metrics, self.goals.directions

    def hypervolume(self, records: Iterable[Record] | None = None) -> float:
        """Hypervolume of the results as a share of the box that the reference point spans."""
        chosen = self.results() if records is None else list(records)
        reference = self.reference()
        if not chosen or not reference:
            return 0.0
        values = [self._values(record.metrics) for record in chosen]
        ideal = [IDEAL.get(metric, 0.0) for metric in self.goals.metrics]
        box = float(np.prod([abs(r - i) or 1.0 for r, i in zip(reference, ideal, strict=True)]))
        return hypervolume(values, reference, self.goals.directions) / box

    def epochs_spent(self) -> int:
        """Epochs of all trials, in every rung."""
        return sum(record.epochs for record in self.records.values())

    def exhausted(self) -> bool:
        """Whether the budget of trials or epochs is spent, or hypervolume has stopped growing."""
        budget = self.config.budget
        listed = bool(self.config.points)  # a list has its own end
        if budget.trials is not None and not listed and len(self.records) >= budget.trials:
            return True
        if budget.epochs is not None and self.epochs_spent() >= budget.epochs:
            return True
        return budget.patience is not None and self._stagnates(budget.patience, budget.growth)

    def _stagnates(self, patience: int, growth: float) -> bool:
        ended = self.with_status("done", "reused", "stopped", "failed")
        if len(ended) <= patience or len(self.front()) == 0:
            return False
        old = {record.number for record in ended[:-patience]}
        before = self.hypervolume([r for r in self.results() if r.number in old])
        return before > 0 and self.hypervolume() < before * (1 + growth)

    def hopeless(self) -> str:
        """The reason, where every trial so far failed for the same one."""
        if any(r.status in ("done", "reused", "stopped") for r in self.records.values()):
            return ""
        failed = self.with_status("failed")
        # Where and when it failed may differ: numbers do not make another reason.
        reasons = {_NUMBER.sub("#", record.reason) for record in failed}
        return failed[0].reason if len(failed) >= SAME_FAILURES and len(reasons) == 1 else ""

    def correlations(self) -> list[Correlation]:
        """Each rung against the end, over the trials that were never to be stopped."""
        learned = next(
            (m for m, k in zip(self.goals.metrics, self.goals.known, strict=True) if not k), None
        )
        if learned is None:
            return []
        spared = [
            r
            for r in self.with_status("done")
            if is_spared(self.config.early_stopping, self.config.seed, r.number)
        ]
        stages = phases(self.config.early_stopping, self.base.epochs)
        return [
            correlation(
                stage.rung,
                stage.until,
                [r.rungs[stage.rung][learned] for r in spared if stage.rung in r.rungs],
                [r.metrics[learned] for r in spared if stage.rung in r.rungs],
            )
            for stage in stages[:-1]
        ]


_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?|\bnan\b|\binf\b")


def _key(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def _constrain(trial: optuna.Trial, name: str, violation: float) -> None:
    """Once: Optuna warns of what was set before a kill."""
    if name not in trial.constraints:
        trial.set_constraint(name, violation)


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a row, without words and without what Ray adds (`config/order/...`)."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and name not in _NOT_METRICS
        and "/" not in name
    }


_NOT_METRICS = frozenset(
    {"training_iteration", "timestamp", "time_total_s", "time_this_iter_s", "time_since_restore"}
    | {"iterations_since_restore", "pid", "done", "rung", "trial_epochs"}
)


def _record(trial: FrozenTrial) -> Record:
    attributes = trial.user_attrs
    rungs = {
        int(name.partition("/")[2]): value
        for name, value in attributes.items()
        if name.startswith("rung/")
    }
    config = TrialConfig.from_mapping(attributes["config"])
    return Record(
        number=trial.number,
        status=attributes["status"],
        config=config,
        digest=config.digest,
        params=dict(trial.params),
        metrics=attributes.get("metrics", {}),
        rungs=rungs,
        reason=attributes.get("reason", ""),
        epochs=attributes.get("epochs", 0),
        attempt=attributes.get("attempt", 1),
        source=attributes.get("source", "sampler"),
        reused_from=attributes.get("reused_from"),
        started=0.0 if trial.datetime_start is None else trial.datetime_start.timestamp(),
    )
