"""The study's process: a session from its start to its end, over Ray's searcher and scheduler.

The searcher and the scheduler hold the ledger, which lives in this process: they are never pickled
with it, and a study is never restored from Ray's own files.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from slb_autotune.config.files import write_atomically
from slb_autotune.config.study import StudyConfig
from slb_autotune.errors import ConfigError, InputError
from slb_autotune.search.budget import common_failure
from slb_autotune.search.cluster import probe_nodes, start_ray, stop_ray
from slb_autotune.search.feasibility import check_study, concurrent_trials
from slb_autotune.search.ledger import Ledger, StudyStopped
from slb_autotune.search.records import FINISHED, Outcome, StudyListener, StudySnapshot
from slb_autotune.search.storage import StudyFolder, open_ledger
from slb_autotune.search.warm_start import enqueue_first_trials
from slb_autotune.search.worker import Assignment, TrialTrainable
from slb_autotune.version import VERSION

SAVE_SECONDS = 5.0

OnChange = Callable[[], None]


def run_study(
    config: StudyConfig,
    listeners: Sequence[StudyListener] = (),
    *,
    resume: bool = False,
    retry_failed: bool = False,
    trainable: type[tune.Trainable] = TrialTrainable,
) -> Outcome:
    """Run a study to the end of its budget, or until Ctrl-C.

    `retry_failed` trains failed trials again. `trainable` takes the place of training, to measure
    what everything else costs.
    """
    files = StudyFolder(Path(config.storage.folder), config.name)
    if files.config_path.exists() and not resume:
        raise InputError(
            f"study {config.name!r} exists already in {files.path}",
            f"continue it with `slb-autotune resume {config.name}`, or give it another name.",
        )
    # What cannot run leaves nothing behind that would be in the way of the next try.
    check_study(config)
    if config.storage.ray is not None:
        start_ray(config.storage.ray, concurrent_trials(config))
    with files.lock():
        write_atomically(files.config_path, config.to_yaml().encode())
        ledger = open_ledger(config, files)
        enqueue_first_trials(ledger)
        if retry_failed:
            ledger.retry_failed()
        session = _Session(ledger, files, listeners)
        return session.run(trainable)


class _Session:
    """One run of the driver over a study."""

    def __init__(
        self, ledger: Ledger, files: StudyFolder, listeners: Sequence[StudyListener]
    ) -> None:
        self.ledger, self.files, self.listeners = ledger, files, listeners
        self.config = ledger.config
        self.sessions = files.sessions()
        self.seconds_before = sum(session["seconds"] for session in self.sessions)
        self.began = time.monotonic()
        self.saved = 0.0
        self.sessions.append(
            {"version": VERSION, "started": time.time(), "seconds": 0.0, "pid": os.getpid()}
        )

    def run(self, trainable: type[tune.Trainable]) -> Outcome:
        """Train trials until there are no more; listeners hear of the end however it comes."""
        slots = concurrent_trials(self.config)
        with _interruptible() as interrupted:
            self._save()
            started = start_ray(self.config.storage.ray, slots * self.config.resources.cpus)
            try:
                probe_nodes(self.files.path)
                for listener in self.listeners:
                    listener.on_start(self.snapshot())
                run_trials(
                    self.ledger,
                    slots,
                    lambda: interrupted() or self._out_of_time() or self._all_fail(),
                    self._changed,
                    trainable,
                )
            finally:
                self._save()
                outcome = Outcome(
                    self.snapshot(),
                    self._status(interrupted()),
                    self._seconds(),
                    self.ledger.note,
                )
                for listener in self.listeners:
                    listener.on_end(outcome)
                if started:
                    stop_ray()
        self._check_success(outcome)
        return outcome

    def _check_success(self, outcome: Outcome) -> None:
        """A study in which no trial succeeded has failed, whatever it was stopped by."""
        hint = (
            f"see {self.files.path / 'trials'} for the workers' errors; fix it, then "
            f"`slb-autotune resume {self.config.name} --failed`."
        )
        if self._all_fail():
            reason = common_failure(outcome.study)
            raise StudyStopped(f"every trial failed for the same reason: {reason}", hint)
        failed = outcome.study.with_status("failed")
        if failed and not outcome.study.with_status(*FINISHED, "stopped", "running"):
            count = f"{len(failed)} failed, the first: {failed[0].reason}"
            raise StudyStopped(f"no trial succeeded: {count}", hint)

    def snapshot(self) -> StudySnapshot:
        """The study as it stands."""
        return self.ledger.snapshot(self.sessions)

    def _changed(self) -> None:
        if time.monotonic() - self.saved > SAVE_SECONDS:
            self._save()
        study = self.snapshot()
        for listener in self.listeners:
            listener.on_change(study)

    def _save(self) -> None:
        self.sessions[-1]["seconds"] = self._seconds()
        self.files.save_sessions(self.sessions)
        self.saved = time.monotonic()

    def _seconds(self) -> float:
        return time.monotonic() - self.began

    def _out_of_time(self) -> bool:
        limit = self.config.budget.seconds
        return limit is not None and self.seconds_before + self._seconds() > limit

    def _all_fail(self) -> bool:
        return bool(common_failure(self.ledger.snapshot()))

    def _status(self, interrupted: bool) -> str:
        statuses = {record.status for record in self.ledger.records.values()}
        if interrupted or "running" in statuses:
            return "interrupted"
        return "failed" if statuses == {"failed"} else "done"


class StudySearcher(Searcher):
    """Gives Ray the ledger's trials, unfinished ones first, and tells the ledger their ends."""

    def __init__(
        self, ledger: Ledger, changed: OnChange, should_stop: Callable[[], bool] = lambda: False
    ) -> None:
        # Ray wants a metric that every result has, a failed one too.
        super().__init__(metric="rung", mode="max")
        self.ledger, self.changed, self.should_stop = ledger, changed, should_stop
        self.unfinished = sorted(
            r.number for r in ledger.records.values() if r.status == "running"
        )
        self.numbers: dict[str, int] = {}
        self.stopping = False

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The next assignment; FINISHED, which Ray types loosely, where there is none."""
        found = None if self.stopping else self._next()
        if found is None:
            return Searcher.FINISHED  # type: ignore[return-value]
        number, assignment = found
        self.numbers[trial_id] = number
        self.changed()
        return {
            "assignment": assignment.to_mapping(),
            "number": number,
            "gpus": gpu_share(self.ledger, number),
        }

    def _next(self) -> tuple[int, Assignment] | None:
        if self.unfinished:
            number = self.unfinished.pop(0)
            return number, self.ledger.resume(number)
        return self.ledger.ask(self.should_stop)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        number = self.numbers.pop(trial_id)
        if error:
            self.ledger.tell_failed(number, "the worker process died")
        elif result is not None and result.get("status") in ("done", "failed"):
            self.ledger.tell(number, result)
        self.changed()

    def save(self, checkpoint_path: str) -> None:
        """Optuna's storage is the truth; there is nothing else to save."""

    def restore(self, checkpoint_path: str) -> None:
        """Likewise."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class RungScheduler(FIFOScheduler):
    """Asks the ledger at every rung whether a trial may continue."""

    def __init__(self, ledger: Ledger, changed: OnChange) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger, self.changed = ledger, changed

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        decision = str(self.CONTINUE)
        if result.get("status") == "rung":
            passed = self.ledger.tell_rung(trial.config["number"], result["rung"], result)
            decision = str(self.CONTINUE if passed else self.STOP)
        self.changed()
        return decision

    def __getstate__(self) -> dict[str, Any]:
        return {}


class StudyStopper(tune.Stopper):
    """Ends everything when the study asks for it."""

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self.should_stop = should_stop

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.should_stop()

    def __getstate__(self) -> dict[str, Any]:
        return {}


def run_trials(
    ledger: Ledger,
    slots: int,
    should_stop: Callable[[], bool],
    changed: OnChange,
    trainable: type[tune.Trainable],
) -> None:
    """Train the ledger's trials until there are no more, or until it is to stop."""
    searcher = StudySearcher(ledger, changed, should_stop)
    resources = ledger.config.resources

    def stop() -> bool:
        searcher.stopping = should_stop()
        return searcher.stopping

    tuner = tune.Tuner(
        tune.with_resources(trainable, placement(resources.cpus)),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=RungScheduler(ledger, changed),
            num_samples=-1,
            max_concurrent_trials=slots,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=f"session-{int(time.time())}",
            storage_path=str((ledger.folder / "ray").absolute()),
            verbose=0,
            stop=StudyStopper(stop),
            failure_config=tune.FailureConfig(max_failures=resources.retries),
        ),
    )
    tuner.fit()


def placement(cpus: float) -> Callable[[dict[str, Any]], tune.PlacementGroupFactory]:
    """What a trial needs. Ray pickles it to every worker: it refers to nothing but a number."""
    return lambda config: tune.PlacementGroupFactory([{"CPU": cpus, "GPU": config["gpus"]}])


def gpu_share(ledger: Ledger, number: int) -> float:
    """The share of a GPU that a trial gets; `auto` derives it from the memory it needs."""
    asked = ledger.config.resources.gpus
    if asked != "auto":
        return float(asked)
    estimate = ledger.feasibility.check(ledger.records[number].config)
    needed = 2 * estimate.training_bytes + 2**30
    return min(1.0, max(0.05, needed / _gpu_memory()))


def _gpu_memory() -> float:
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            "resources.gpus: auto needs a GPU on the driver's machine", "give a number instead."
        )
    return float(torch.cuda.get_device_properties(0).total_memory)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks the study to stop; the second ends the process at once.

    One key press may arrive twice, from the terminal and from a wrapper that passes it on.
    """
    asked = 0.0

    def handle(number: int, frame: object) -> None:
        nonlocal asked
        if asked and time.monotonic() - asked > 1.0:
            os._exit(130)
        asked = asked or time.monotonic()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
