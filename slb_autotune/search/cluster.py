"""Ray on the driver: a searcher and a scheduler, each thin; the workers' part is `trainable.py`.

The searcher and the scheduler hold the ledger, which lives on the driver: they are never pickled
with it, and a study is never restored from Ray's own files.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from slb_autotune.errors import ConfigError
from slb_autotune.search.ledger import Ledger
from slb_autotune.search.trainable import TrialTrainable

OnChange = Callable[[], None]


class LedgerSearcher(Searcher):
    """Gives Ray the ledger's orders, unfinished trials first, and takes the ends back."""

    def __init__(self, ledger: Ledger, changed: OnChange) -> None:
        # Ray wants a metric that every result has, a failed one too.
        super().__init__(metric="rung", mode="max")
        self.ledger, self.changed = ledger, changed
        self.unfinished = [record.number for record in ledger.with_status("running")]
        self.numbers: dict[str, int] = {}
        self.stopping = False

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The next order; FINISHED, which Ray types loosely, where there is none."""
        if self.stopping:
            return Searcher.FINISHED  # type: ignore[return-value]
        if self.unfinished:
            number = self.unfinished.pop(0)
            order = self.ledger.take_up(number)
        else:
            found = self.ledger.next_order()
            if found is None:
                return Searcher.FINISHED  # type: ignore[return-value]
            number, order = found
        self.numbers[trial_id] = number
        self.changed()
        return {"order": order.to_mapping(), "number": number}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        number = self.numbers.pop(trial_id)
        if error:
            self.ledger.fail(number, "the worker process died")
        elif result is not None and result.get("status") in ("done", "failed"):
            self.ledger.finish(number, result)
        self.changed()

    def save(self, checkpoint_path: str) -> None:
        """Optuna's storage is the truth; there is nothing else to save."""

    def restore(self, checkpoint_path: str) -> None:
        """Likewise."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class RungScheduler(FIFOScheduler):
    """Asks the ledger at every rung whether a trial may go on."""

    def __init__(self, ledger: Ledger, changed: OnChange) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger, self.changed = ledger, changed

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        decision = str(self.CONTINUE)
        if result.get("status") == "rung":
            goes_on = self.ledger.record_rung(trial.config["number"], result["rung"], result)
            decision = str(self.CONTINUE if goes_on else self.STOP)
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
    folder: Path,
    slots: int,
    should_stop: Callable[[], bool],
    changed: OnChange,
    trainable: type[tune.Trainable] | None = None,
) -> None:
    """Train the ledger's orders until there are no more, or until it is told to stop."""
    searcher = LedgerSearcher(ledger, changed)
    resources = ledger.config.resources

    def stop() -> bool:
        searcher.stopping = should_stop()
        return searcher.stopping

    def needs(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory(
            [{"CPU": resources.cpus, "GPU": gpu_share(ledger, config)}]
        )

    tuner = tune.Tuner(
        tune.with_resources(trainable or TrialTrainable, needs),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=RungScheduler(ledger, changed),
            num_samples=-1,
            max_concurrent_trials=slots,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=f"session-{int(time.time())}",
            storage_path=str((folder / "ray").absolute()),
            verbose=0,
            stop=StudyStopper(stop),
            failure_config=tune.FailureConfig(max_failures=resources.retries),
        ),
    )
    tuner.fit()


def gpu_share(ledger: Ledger, config: dict[str, Any]) -> float:
    """The share of a GPU that a trial gets; `auto` derives it from the memory it needs."""
    asked = ledger.config.resources.gpus
    if asked != "auto":
        return float(asked)
    record = ledger.records[config["number"]]
    needed = 2 * ledger.costs.cost(record.config).training_bytes + 2**30
    return min(1.0, max(0.05, needed / _gpu_memory()))


def _gpu_memory() -> float:
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            "resources.gpus: auto needs a GPU on the driver's machine", "give a number instead."
        )
    return float(torch.cuda.get_device_properties(0).total_memory)


def start_ray(address: str | None, cpus: float) -> bool:
    """Connect to a cluster or start Ray here; whether we started it."""
    if ray.is_initialized():
        return False
    if address is None:
        ray.init(
            address="local",
            num_cpus=max(1, round(cpus)),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    else:
        _check_answers(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _no_cluster(address, str(error).splitlines()[0]) from error
    return address is None


def _check_answers(address: str) -> None:
    """Ask a `host:port` whether anything is there: Ray itself asks for minutes."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        if parts.port is not None:  # `auto` finds a cluster by itself
            socket.create_connection((parts.hostname, parts.port), timeout=10).close()
    except (OSError, ValueError) as error:
        raise _no_cluster(address, str(error)) from error


def _no_cluster(address: str, reason: str) -> ConfigError:
    return ConfigError(
        f"there is no Ray cluster at {address!r} that lets us in: {reason}",
        "start one with `ray start --head`, copy its ~/.ray/auth_token here, or leave "
        "storage.ray out.",
    )


def probe_nodes(folder: Path) -> None:
    """On a cluster, check that every node can write into the run folder before the first trial."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return

    @ray.remote(num_cpus=0)
    def write(path: str) -> bool:
        probe = Path(path)
        probe.write_text("")
        return probe.exists()

    for node in nodes:
        name = node["NodeID"]
        where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(name, soft=False)
        path = folder / f".probe-{name}"
        try:
            ray.get(write.options(scheduling_strategy=where).remote(str(path.absolute())))
        except Exception as error:
            raise ConfigError(
                f"node {node['NodeManagerAddress']} cannot write to {folder}",
                "storage.folder must be a folder that all nodes share.",
            ) from error
        if not path.exists():
            raise ConfigError(
                f"node {node['NodeManagerAddress']} writes to a {folder} of its own",
                "storage.folder must be a folder that all nodes share.",
            )
        path.unlink()
