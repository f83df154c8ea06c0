"""The study's ledger, on the driver alone: asks Optuna for trials and tells it their results.

Optuna's storage is the single truth. Whatever a study must know after a kill is stored there, in
the attributes of its trials; what is kept in memory is read from it when the study is opened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from slb_autotune.config.study import StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import ConfigError, SlbError
from slb_autotune.pareto import reference_point
from slb_autotune.search.attributes import numbers_of, record_of, set_constraint
from slb_autotune.search.budget import exhausted
from slb_autotune.search.early_stopping import is_spared, phases, rank_deficit
from slb_autotune.search.feasibility import Estimate, Feasibility
from slb_autotune.search.records import FINISHED, Record, StudySnapshot, trial_folder
from slb_autotune.search.samplers import make_sampler
from slb_autotune.search.space import Space
from slb_autotune.search.worker import Assignment

MAX_INFEASIBLE_DRAWS = 500
MAX_REPEATED_DRAWS = 200  # all tried before: then the space is exhausted


class StudyStopped(SlbError):
    """The study cannot continue."""


class Ledger:
    """Asks for trials, stores their results, and decides at rungs."""

    def __init__(
        self,
        config: StudyConfig,
        study: optuna.Study,
        storage: BaseStorage,
        folder: Path,
        *,
        read_only: bool = False,
    ) -> None:
        self.config, self.study, self.storage, self.folder = config, study, storage, folder
        self.read_only = read_only
        self.objectives = config.goals()
        self.constraints = tuple(config.parsed_constraints)
        self.records: dict[int, Record] = {}
        self.infeasible = 0
        self.note = ""  # why no more trials are drawn, where it is not the budget
        self._from_queue = False
        self._rejected = ""  # why the last infeasible draw was
        self._trials: dict[int, optuna.Trial] = {}
        self._reference: tuple[float, ...] = tuple(study.user_attrs.get("reference", ()))
        retried = set(study.user_attrs.get("retried", ()))
        for trial in study.get_trials(deepcopy=False):
            if trial.number in retried:
                continue
            status = trial.user_attrs.get("status")
            if status == "infeasible":
                self.infeasible += 1
            elif status is not None:
                self.records[trial.number] = record_of(trial)

    @cached_property
    def feasibility(self) -> Feasibility:
        """What can run; built when it is first needed, since it lays out the network."""
        return Feasibility(self.config)

    @cached_property
    def space(self) -> Space:
        """What the study may try."""
        return Space(self.config, self.feasibility.layers)

    # -- asking ----------------------------------------------------------------------------

    def enqueue(self, values: Iterable[Mapping[str, Any]], source: str) -> None:
        """Put trials at the head of the queue, each once."""
        # Optuna's own skip_if_exists compares with every trial anew: 24 s for 300 grid points.
        seen = {
            _key(trial.system_attrs["fixed_params"])
            for trial in self.study.get_trials(deepcopy=False)
            if "fixed_params" in trial.system_attrs
        }
        for value in values:
            if _key(value) not in seen:
                seen.add(_key(value))
                self.study.enqueue_trial(dict(value), user_attrs={"source": source})

    def retry_failed(self) -> list[int]:
        """Queue the failed trials again, each as a new trial; the numbers of those it replaces."""
        failed = self.snapshot().with_status("failed")
        if not self.config.points:
            for record in failed:
                self.study.enqueue_trial(record.params, user_attrs={"source": record.source})
        numbers = [record.number for record in failed]
        # Only now: a kill in between queues them once more, and the same is not trained twice.
        self.study.set_user_attr("retried", [*self.study.user_attrs.get("retried", ()), *numbers])
        for number in numbers:
            del self.records[number]
        return numbers

    def ask(
        self, should_stop: Callable[[], bool] = lambda: False
    ) -> tuple[int, Assignment] | None:
        """The next trial to train; None where the budget is spent or nothing new is drawn.

        `note` then says why, where it is not the budget. `should_stop` is asked between draws.
        """
        self._tell_stored_results()
        infeasible = repeated = 0
        while not exhausted(self.snapshot()) and not should_stop():
            if infeasible >= MAX_INFEASIBLE_DRAWS:
                self._give_up(infeasible)
                return None
            if repeated >= MAX_REPEATED_DRAWS:
                self.note = f"the last {repeated} draws repeat trials: the space is exhausted"
                return None
            trial = self._ask_optuna()
            if trial is None:
                return None
            drawn = self._draw(trial)
            if drawn is None:
                infeasible += not self._from_queue  # a queue, such as a grid, has its own end
                continue
            config, estimate = drawn
            earlier = self._earlier_trial(config)
            if earlier is not None:
                self._reuse(trial, config, estimate, earlier)
                repeated += 1
                continue
            self._store_config(trial, config, estimate)
            trial.set_user_attr("status", "running")
            self._refresh(trial.number)
            return trial.number, self.assignment(trial.number)
        return None

    def _give_up(self, draws: int) -> None:
        """End a study that draws nothing feasible; one without any trial has failed."""
        self.note = f"the last {draws} draws are all infeasible; the last: {self._rejected}"
        if not self.records:
            raise StudyStopped(
                self.note, "loosen the constraints, or narrow the space to what can meet them."
            )

    def resume(self, number: int) -> Assignment:
        """An unfinished trial of an earlier session, as a new attempt."""
        attempt = self.records[number].attempt + 1
        self._trial(number).set_user_attr("attempt", attempt)
        self._refresh(number)
        return self.assignment(number)

    def assignment(self, number: int) -> Assignment:
        """What a worker needs to train a trial."""
        record = self.records[number]
        return Assignment(
            config=record.config.to_mapping(),
            folder=str(trial_folder(self.folder, number).absolute()),
            phases=tuple(phases(self.config.early_stopping, record.config.epochs)),
            attempt=record.attempt,
            costs=record.costs,
            test=self.config.confirms is not None,
        )

    def _ask_optuna(self) -> optuna.Trial | None:
        """A new trial, or one whose parameters were being drawn when the study was killed."""
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        half_drawn = [trial for trial in running if "status" not in trial.user_attrs]
        waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if not half_drawn and not waiting and self._list_is_done():
            return None
        self._from_queue = bool(waiting) and not half_drawn
        next_ones = [trial.number for trial in (*half_drawn, *waiting)]
        number = next_ones[0] if next_ones else len(self.study.get_trials(deepcopy=False))
        self.study.sampler = make_sampler(self.config.sampler, self.config.seed, number)
        trial = self._reopen(number) if half_drawn else self.study.ask()
        self._trials[trial.number] = trial
        return trial

    def _list_is_done(self) -> bool:
        """A list of points or a grid ends with its last entry."""
        if self.config.points:
            return self._next_point() is None
        return self.config.sampler.name == "grid"

    def _next_point(self) -> TrialConfig | None:
        """The first listed configuration that no trial has: they are known by their digests."""
        tried = {record.digest for record in self.records.values()}
        return next((point for point in self._points if point.digest not in tried), None)

    @cached_property
    def _points(self) -> list[TrialConfig]:
        return [self.feasibility.base.updated(point) for point in self.config.points]

    def _draw(self, trial: optuna.Trial) -> tuple[TrialConfig, Estimate] | None:
        """The trial's configuration, or None where it is infeasible; that teaches the sampler."""
        if self.config.points:
            point = self._next_point()
            assert point is not None
            return point, self.feasibility.check(point)
        values = self.space.suggest(trial)
        try:
            config = self.space.config(values)
        except ConfigError as error:
            self._reject(trial, {"valid": 1.0}, error.message)
            return None
        estimate = self.feasibility.check(config)
        if estimate.reason:
            self._reject(trial, estimate.violations, estimate.reason)
            return None
        return config, estimate

    def _reject(self, trial: optuna.Trial, violations: Mapping[str, float], reason: str) -> None:
        for name, violation in violations.items():
            set_constraint(trial, name, violation)
        trial.set_user_attr("reason", reason)
        trial.set_user_attr("status", "infeasible")
        self._tell_optuna(trial, state=TrialState.PRUNED)
        self.infeasible += 1
        self._rejected = reason

    def _earlier_trial(self, config: TrialConfig) -> Record | None:
        """The trial that had this very configuration, a finished one first."""
        digest = config.digest
        same = [record for record in self.records.values() if record.digest == digest]
        same.sort(key=lambda record: record.status != "done")
        return next((record for record in same if record.status != "reused"), None)

    def _reuse(
        self, trial: optuna.Trial, config: TrialConfig, estimate: Estimate, earlier: Record
    ) -> None:
        """Nothing is trained twice: a result is reused, anything else is an infeasible draw."""
        if earlier.status != "done":
            reason = f"the same as trial {earlier.number}, which is {earlier.status}"
            self._reject(trial, {"stopped early": 1.0}, reason)
            return
        self._store_config(trial, config, estimate)
        trial.set_user_attr("reused_from", earlier.number)
        trial.set_user_attr("ran_on", earlier.ran_on)
        self._complete(trial, earlier.metrics, "reused")
        self._refresh(trial.number)

    def _store_config(self, trial: optuna.Trial, config: TrialConfig, estimate: Estimate) -> None:
        known = {"config": config.to_mapping(), "costs": estimate.costs, "bits": estimate.bits}
        trial.set_user_attr("known", known)

    # -- telling ---------------------------------------------------------------------------

    def tell_rung(self, number: int, rung: int, row: Mapping[str, Any]) -> bool:
        """Store a rung's result; whether the trial may continue."""
        if self.records[number].status != "running":
            return False
        trial = self._trial(number)
        self._store_progress(trial, row)
        trial.set_user_attr(f"rung/{rung}", numbers_of(row))
        self._refresh(number)
        if is_spared(self.config.early_stopping, self.config.seed, number):
            return True
        epochs = self.records[number].config.epochs  # a rung compares equal budgets
        peers = [r for r in self.records.values() if rung in r.rungs and r.config.epochs == epochs]
        values = [self.objectives.values(r.rungs[rung]) for r in peers]
        mine = next(i for i, r in enumerate(peers) if r.number == number)
        deficit = rank_deficit(values, mine, self.objectives, self.config.early_stopping)
        if deficit <= 0:
            return True
        trial.set_user_attr("reason", f"rung {rung}: behind by {deficit:.0%} of the trials")
        trial.set_user_attr("deficit", deficit)
        trial.set_user_attr("status", "stopped")
        # Pruned with a violated constraint: the sampler never models it as good. Only once the
        # status says so: a trial that is resumed may yet pass.
        set_constraint(trial, "stopped early", deficit)
        self._tell_optuna(trial, state=TrialState.PRUNED)
        self._refresh(number)
        return False

    def tell(self, number: int, row: Mapping[str, Any]) -> None:
        """Store how a trial ended by itself, well or badly."""
        if self.records[number].status != "running":
            return
        trial = self._trial(number)
        self._store_progress(trial, row)
        if row["status"] == "failed":
            self.tell_failed(number, row["reason"])
            return
        metrics = numbers_of(row)
        values = self.objectives.values(metrics)
        if not all(map(math.isfinite, values)):
            found = dict(zip(self.objectives.metrics, values, strict=True))
            self.tell_failed(number, f"an objective is not a number: {found}")
            return
        self._complete(trial, metrics, "done")
        self._refresh(number)

    def tell_failed(self, number: int, reason: str) -> None:
        """Store that a trial failed for good."""
        if self.records[number].status != "running":
            return
        trial = self._trial(number)
        trial.set_user_attr("reason", reason)
        trial.set_user_attr("status", "failed")
        self._tell_optuna(trial, state=TrialState.FAIL)
        self._refresh(number)

    def _store_progress(self, trial: optuna.Trial, row: Mapping[str, Any]) -> None:
        """The epochs spent so far, and what the worker says of itself."""
        if "trial_epochs" in row:
            trial.set_user_attr("epochs", row["trial_epochs"])
        if "ran_on" in row:
            trial.set_user_attr("ran_on", json.loads(row["ran_on"]))

    def _complete(self, trial: optuna.Trial, metrics: Mapping[str, float], status: str) -> None:
        for constraint in self.constraints:
            value = metrics.get(constraint.metric, math.nan)
            violation = constraint.violation(value)
            stored = violation if math.isfinite(violation) else 1.0
            set_constraint(trial, str(constraint), stored)
        set_constraint(trial, "stopped early", 0.0)
        trial.set_user_attr("metrics", dict(metrics))
        trial.set_user_attr("status", status)
        self._tell_optuna(trial, values=self.objectives.values(metrics))

    def _tell_stored_results(self) -> None:
        """Tell Optuna the results that a killed driver stored but did not tell it."""
        for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            status = frozen.user_attrs.get("status", "running")
            if status == "running":
                continue
            trial = self._trial(frozen.number)
            if status in FINISHED:
                values = self.objectives.values(frozen.user_attrs["metrics"])
                self._tell_optuna(trial, values=values)
            elif status == "failed":
                self._tell_optuna(trial, state=TrialState.FAIL)
            else:
                if status == "stopped":
                    set_constraint(trial, "stopped early", frozen.user_attrs["deficit"])
                self._tell_optuna(trial, state=TrialState.PRUNED)
            if frozen.number in self.records:
                self._refresh(frozen.number)  # it has an end now

    def _tell_optuna(self, trial: optuna.Trial, **result: Any) -> None:
        self.study.tell(trial, **result)
        self._trials.pop(trial.number, None)

    def _trial(self, number: int) -> optuna.Trial:
        if number not in self._trials:
            # The sampler is not asked again for a trial that has its values.
            self.study.sampler = optuna.samplers.RandomSampler(seed=0)
            self._trials[number] = self._reopen(number)
        return self._trials[number]

    def _reopen(self, number: int) -> optuna.Trial:
        """An unfinished trial of an earlier session."""
        study_id = self.storage.get_study_id_from_name(self.study.study_name)
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(study_id, number)
        return optuna.Trial(self.study, trial_id)

    def _refresh(self, number: int) -> None:
        self.records[number] = record_of(self.study.get_trials(deepcopy=False)[number])

    # -- where the study stands ------------------------------------------------------------

    def snapshot(self, sessions: Iterable[dict[str, Any]] = ()) -> StudySnapshot:
        """The study as plain records; it costs nothing, since the records are not copied."""
        return StudySnapshot(
            config=self.config,
            folder=self.folder,
            objectives=self.objectives,
            constraints=self.constraints,
            records=MappingProxyType(self.records),
            reference=self.reference,
            infeasible=self.infeasible,
            sessions=tuple(sessions),
        )

    @property
    def reference(self) -> tuple[float, ...]:
        """The reference point of the study's hypervolume: stored once it is known."""
        if not self._reference:
            results = [r.metrics for r in self.records.values() if r.status in FINISHED]
            point = reference_point(self.objectives, self.feasibility.float_costs, results)
            self._reference = tuple(point)
            if point and not self.read_only:
                self.study.set_user_attr("reference", point)
        return self._reference


def _key(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)
