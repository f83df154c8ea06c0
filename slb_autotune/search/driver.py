"""A study's life: run, resume, stop; its folder, its lock and its manifest."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slb_autotune.config.files import write_atomically
from slb_autotune.config.study import StudyConfig
from slb_autotune.errors import ConfigError, InputError
from slb_autotune.search.ledger import Ledger, StudyStopped
from slb_autotune.search.storage import StudyFolder, blank_ledger, open_ledger
from slb_autotune.search.warm_start import warm_values
from slb_autotune.tracking.recorder import make_recorder
from slb_autotune.version import VERSION

if TYPE_CHECKING:
    from ray import tune

MANIFEST_SECONDS = 1.0


@dataclass(frozen=True)
class Outcome:
    """How a session of a study ended."""

    ledger: Ledger
    folder: Path
    interrupted: bool
    seconds: float


class View:
    """What a study shows while it runs; this one shows nothing."""

    unrecorded = 0  # trials that MLflow could not be told

    def start(self, ledger: Ledger) -> None:
        """Trials are about to run."""

    def update(self) -> None:
        """Something changed."""

    def stop(self) -> None:
        """Trials have ended."""


def run_study(
    config: StudyConfig,
    view: View | None = None,
    *,
    resume: bool = False,
    report: Callable[[Ledger], Sequence[Path]] | None = None,
    trainable: type[tune.Trainable] | None = None,
) -> Outcome:
    """Run a study to the end of its budget, or until Ctrl-C.

    `report` writes files when the trials have ended, and MLflow gets them too. `trainable` takes
    the place of training, to measure what everything else costs.
    """
    view = View() if view is None else view
    files = StudyFolder(Path(config.storage.folder), config.name)
    if files.config_path.exists() and not resume:
        raise InputError(
            f"study {config.name!r} exists already in {files.path}",
            f"go on with `slb-autotune resume {config.name}`, or give it another name.",
        )
    # What cannot run leaves nothing behind that would be in the way of the next try.
    check_study(config)
    if config.storage.ray is not None:
        from slb_autotune.search.cluster import start_ray

        start_ray(config.storage.ray, slots_of(config))
    with files.lock():
        write_atomically(files.config_path, config.to_yaml().encode())
        ledger = open_ledger(config, files)
        if not resume or not ledger.study.user_attrs.get("warm"):
            enqueue_first_trials(ledger, files.path)
        return _session(config, files, ledger, view, report, trainable)


def enqueue_first_trials(ledger: Ledger, folder: Path) -> None:
    """Put warm starts, or a grid, at the head of the queue; `warm` says that it is whole."""
    config = ledger.config
    if not config.points:
        if config.sampler.name == "grid":
            ledger.enqueue(ledger.space.grid(), "grid")
        else:
            for source, values in warm_values(ledger, folder):
                ledger.enqueue([values], source)
    ledger.study.set_user_attr("warm", True)


def _session(
    config: StudyConfig,
    files: StudyFolder,
    ledger: Ledger,
    view: View,
    report: Callable[[Ledger], Sequence[Path]] | None,
    trainable: type[tune.Trainable] | None,
) -> Outcome:
    from slb_autotune.search.cluster import probe_nodes, run_trials, start_ray

    began = time.monotonic()
    manifest = files.manifest()
    spent = sum(session["seconds"] for session in manifest["sessions"])
    slots = slots_of(config)
    session = {"version": VERSION, "started": time.time(), "seconds": 0.0, "pid": os.getpid()}
    manifest["sessions"].append(session)
    written = 0.0

    def write(force: bool = False) -> None:
        nonlocal written
        session["seconds"] = time.monotonic() - began
        if force or time.monotonic() - written > MANIFEST_SECONDS:
            manifest["trials"] = manifest_rows(ledger)
            write_atomically(files.manifest_path, json.dumps(manifest, indent=1).encode())
            written = time.monotonic()

    recorder = make_recorder(ledger, manifest["sessions"][0]["started"])

    def changed() -> None:
        write()
        view.update()
        if recorder is not None:
            recorder.tell()

    with _interruptible() as interrupted:

        def should_stop() -> bool:
            elapsed = spent + time.monotonic() - began
            over = config.budget.seconds is not None and elapsed > config.budget.seconds
            return interrupted() or over or bool(ledger.hopeless())

        write(force=True)
        if recorder is not None:
            recorder.start()
        started = start_ray(config.storage.ray, slots * config.resources.cpus)
        try:
            probe_nodes(files.path)
            view.start(ledger)
            run_trials(ledger, files.path, slots, should_stop, changed, trainable)
            view.stop()
            paths = report(ledger) if report is not None and not interrupted() else []
            if recorder is not None:
                for path in paths:
                    recorder.attach(path)
        finally:
            view.stop()
            write(force=True)
            if recorder is not None:
                view.unrecorded = recorder.close(_status(ledger, interrupted()))
            if started:
                import ray

                ray.shutdown()
    if ledger.hopeless():
        raise StudyStopped(
            f"every trial failed for the same reason: {ledger.hopeless()}",
            f"see {files.path / 'trials'} for the workers' errors; mend it, then resume.",
        )
    return Outcome(ledger, files.path, interrupted(), time.monotonic() - began)


def _status(ledger: Ledger, interrupted: bool) -> str:
    """How the session ended, as MLflow's runs say it."""
    if interrupted or ledger.with_status("running"):
        return "interrupted"
    return "failed" if ledger.hopeless() else "done"


def slots_of(config: StudyConfig) -> int:
    """Trials at once: as asked, or what fits the machine."""
    if config.resources.concurrent is not None:
        return config.resources.concurrent
    if config.storage.ray is not None:
        return 1000
    return max(1, int((os.cpu_count() or 1) / config.resources.cpus))


def manifest_rows(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """Trial number -> where it is and how it stands."""
    return {
        str(number): {
            "optuna": number,
            "folder": f"trials/{number:05d}",
            "status": record.status,
            "attempt": record.attempt,
            "digest": record.digest,
        }
        for number, record in ledger.records.items()
    }


def check_feasible(ledger: Ledger) -> None:
    """Refuse objectives that nothing measures and constraints that no allocation can meet."""
    wanted = [*ledger.goals.metrics, *(c.metric for c in ledger.constraints)]
    validated = [metric for metric in wanted if metric.startswith("val_")]
    if validated and ledger.base.data.val_fraction == 0:
        raise ConfigError(
            f"{validated[0]} is asked for, but data.val_fraction is 0: nothing is held out",
            "set data.val_fraction to 0.1 or so.",
        )
    known = [c for c in ledger.constraints if c.known_before and c.upper]
    if not known or ledger.config.points:
        return
    least = least_config(ledger)
    metrics = ledger.costs.cost(least).metrics()
    for constraint in known:
        if constraint.violation(metrics[constraint.metric]) > 0:
            raise ConfigError(
                f"no allocation can meet {constraint}: the least is "
                f"{metrics[constraint.metric]:,.0f}",
                "raise the limit, allow fewer bits, or narrow the network.",
            )


def check_study(config: StudyConfig) -> None:
    """What `validate` checks beyond the file: that some allocation meets the constraints."""
    check_feasible(blank_ledger(config))


def least_config(ledger: Ledger) -> Any:
    """The trial with the fewest bits that the space allows."""
    values: dict[str, Any] = {}
    for dimension in ledger.space.dimensions:
        if "/" in dimension.name:
            values[dimension.name] = min(dimension.distribution.choices)  # type: ignore[attr-defined]
        elif dimension.name == "network.width":
            choices = getattr(dimension.distribution, "choices", None)
            low = getattr(dimension.distribution, "low", None)
            values[dimension.name] = min(choices) if choices else low
    return ledger.space.config(values)


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
