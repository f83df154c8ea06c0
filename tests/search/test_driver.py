"""Studies with real Ray and real Optuna storage."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray import cloudpickle

from slb_autotune.config.study import StudyConfig
from slb_autotune.errors import ConfigError, InputError
from slb_autotune.search.cluster import start_ray
from slb_autotune.search.driver import (
    RungScheduler,
    StudySearcher,
    StudyStopper,
    placement,
    run_study,
)
from slb_autotune.search.ledger import StudyStopped
from slb_autotune.search.records import Outcome, Record, StudyListener, StudySnapshot
from slb_autotune.search.storage import StudyFolder, open_ledger, read_ledger
from slb_autotune.training.loop import train
from slb_autotune.training.provenance import provenance

SMALL = {
    "network": {"name": "resnet20", "width": 4},
    "data": {"name": "digits", "train_images": 100},
    "batch_size": 50,
    "epochs": 2,
    "norm": {"batches": 1},
    "device": "cpu",
}


@pytest.fixture(scope="module", autouse=True)
def one_ray() -> Iterator[None]:
    """One Ray for all studies of this file; a study does not shut down what it did not start.

    Its workers are not nice: other tests run beside this one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        start_ray(None, 2)
        yield
        ray.shutdown()


def study(
    folder: Path, name: str = "s", trial: dict | None = None, **fields: object
) -> StudyConfig:
    values = {
        "name": name,
        "trial": {**SMALL, **(trial or {})},
        "space": {
            "T_e": {"log": [1, 10000]},
            "weight_bits": {"choices": [1, 2, 4], "per": "stage"},
        },
        "budget": {"trials": 4},
        "resources": {"concurrent": 1},  # a worker takes seconds to start
        "storage": {"folder": str(folder), "mlflow": "off"},
        **fields,
    }
    if "points" in fields:
        values.pop("space")
    return StudyConfig.from_mapping(values)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def small_study(folder: Path, trials: int, concurrent: int) -> StudyConfig:
    """With rungs that everything passes."""
    return study(
        folder,
        budget={"trials": trials},
        resources={"concurrent": concurrent},
        early_stopping={"rungs": [0.5], "spared": 1.0},
    )


class Witness(StudyListener):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.statuses: set[str] = set()

    def on_start(self, study: StudySnapshot) -> None:
        self.heard.append("start")

    def on_change(self, study: StudySnapshot) -> None:
        self.heard.append("change")
        self.statuses |= {record.status for record in study.records.values()}

    def on_end(self, outcome: Outcome) -> None:
        self.heard.append(f"end {outcome.status}")


@pytest.fixture(scope="module")
def witness() -> Witness:
    return Witness()


@pytest.fixture(scope="module")
def finished(folder: Path, witness: Witness) -> Outcome:
    return run_study(small_study(folder, trials=4, concurrent=2), [witness])


@pytest.fixture(scope="module")
def continued(finished: Outcome, folder: Path) -> StudySnapshot:
    """The same, finished already, given two trials more, one at a time."""
    return run_study(small_study(folder, trials=6, concurrent=1), resume=True).study


def test_a_study_runs_to_its_budget(finished: Outcome) -> None:
    study = finished.study
    assert len(study.with_status("done")) == 4
    assert [record.source for record in sorted(study.records.values(), key=_number)] == [
        *("uniform 1 bit", "uniform 2 bit", "uniform 4 bit"),
        "paper",
    ]
    assert (finished.status, finished.interrupted) == ("done", False)
    assert study.front()
    assert 0 < study.hypervolume() < 1
    assert study.epochs_spent() == 4 * (1 + 2)


def test_listeners_hear_of_the_start_of_changes_and_of_the_end(
    finished: Outcome, witness: Witness
) -> None:
    assert (witness.heard[0], witness.heard[-1]) == ("start", "end done")
    assert set(witness.heard[1:-1]) == {"change"}
    assert witness.statuses == {"running", "done"}


def test_a_trial_is_recorded_with_what_its_worker_ran_on(finished: Outcome) -> None:
    for record in finished.study.records.values():
        assert record.ran_on == provenance(record.config)
        assert record.ran_on["device"] == "cpu"
        assert 0 < record.started < record.ended


def _number(record: Record) -> int:
    return record.number


def test_a_finished_study_can_be_given_more(finished: Outcome, continued: StudySnapshot) -> None:
    assert len(continued.with_status("done", "reused")) == 6
    assert {n: continued.records[n].metrics for n in range(4)} == {
        n: finished.study.records[n].metrics for n in range(4)
    }
    assert len(continued.sessions) == 2
    with pytest.raises(InputError, match="study 's' exists already"):
        run_study(continued.config)


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> StudySnapshot:
    """Six listed points, one after the other: three that train and three that do not."""
    folder = tmp_path_factory.mktemp("runs")
    again = {"weight_bits": 4, "seed": 3}
    killer = {
        "name": "tests.search.networks:killer",
        "options": {"marker": str(folder / "killed")},
    }
    points = [
        *(again, {"weight_bits": 1}, {"activation_bits": 2}),
        {"optimizer.lr": 1e30, "lr_schedule.name": "constant"},
        {"network.name": "tests.search.networks:broken"},
        {"network": killer},
    ]
    return run_study(study(folder, points=points)).study


def test_a_trial_has_the_same_numbers_alone_after_another_and_from_train(
    listed: StudySnapshot,
) -> None:
    for number in range(3):
        record = listed.records[number]
        alone = train(record.config).metrics
        for name in ("val_accuracy", "val_loss", "train_loss", "quantization_gap", "size_bytes"):
            assert record.metrics[name] == alone[name], name


def test_trials_that_lag_behind_are_stopped_and_pruned(tmp_path: Path) -> None:
    points = [{"T_e": T_e} for T_e in (1000.0, 800.0, 600.0, 500.0, 1.0, 1.5)]
    config = study(
        tmp_path,
        trial={"epochs": 4},
        points=points,
        objectives={"quantization_gap": "minimize"},  # T_e alone decides it, however short
        early_stopping={"rungs": [0.5], "minimum": 4, "spared": 0.0},
    )
    found = run_study(config).study
    stopped = found.with_status("stopped")
    assert stopped
    assert found.with_status("done")
    storage = read_ledger(config, StudyFolder(tmp_path, "s")).study
    states = {trial.number: trial.state.name for trial in storage.trials}
    assert {states[record.number] for record in stopped} == {"PRUNED"}
    assert all(record.epochs == 2 for record in stopped)
    assert all(record.epochs == 6 for record in found.with_status("done"))


class TestFailures:
    def test_a_failing_trial_is_recorded_and_a_killed_worker_tried_again(
        self, listed: StudySnapshot
    ) -> None:
        statuses = [listed.records[n].status for n in range(6)]
        assert statuses == ["done"] * 3 + ["failed", "failed", "done"]
        assert Path(listed.records[5].config.network.options["marker"]).exists()
        assert "the loss became nan in epoch 1" in listed.records[3].reason
        assert listed.records[4].reason == 'KeyError: "a bug of the user\'s"'
        assert "in forward" in (listed.trial_folder(4) / "error.txt").read_text()

    def test_the_same_failure_again_and_again_stops_the_study(self, tmp_path: Path) -> None:
        trial = {"network": {"name": "tests.search.networks:broken", "width": 4}}
        config = study(tmp_path, trial=trial, budget={"trials": 30})
        with pytest.raises(StudyStopped, match="every trial failed for the same reason: KeyError"):
            run_study(config)
        files = StudyFolder(tmp_path, "s")
        assert len(open_ledger(config, files).records) < 10


def test_a_study_without_a_single_success_fails(tmp_path: Path) -> None:
    points = [
        {"network": {"name": "tests.search.networks:broken", "width": 4}},
        {"optimizer.lr": 1e30, "lr_schedule.name": "constant"},
    ]
    with pytest.raises(StudyStopped, match="no trial succeeded: 2 failed, the first: KeyError"):
        run_study(study(tmp_path, points=points))


def test_a_study_that_is_refused_leaves_its_name_free(tmp_path: Path) -> None:
    config = study(tmp_path, warm_start={"study": "nosuch"})
    with pytest.raises(InputError, match="there is no study 'nosuch'"):
        run_study(config)
    assert not StudyFolder(tmp_path, "s").path.exists()


def test_what_a_worker_is_sent_needs_nothing_of_the_driver() -> None:
    """In a process that can import neither torch nor anything of ours, it still unpickles."""
    sent = cloudpickle.dumps(placement(2.0))
    code = """
import pickle, sys
for name in ("torch", "torchvision", "optuna", "slb_autotune"):
    sys.modules[name] = None
print(pickle.loads(sys.stdin.buffer.read())({"gpus": 0.5}).required_resources)
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, input=sent, capture_output=True, timeout=100, check=False)
    assert ended.stdout.decode().strip() == "{'CPU': 2.0, 'GPU': 0.5}", ended.stderr.decode()


def test_what_ray_pickles_holds_no_storage(tmp_path: Path) -> None:
    config = study(tmp_path)
    ledger = open_ledger(config, _made(StudyFolder(tmp_path, "s")))
    for thing in (
        StudySearcher(ledger, lambda: None),
        RungScheduler(ledger, lambda: None),
        StudyStopper(lambda: False),
    ):
        assert len(pickle.dumps(thing)) < 2000


def _made(files: StudyFolder) -> StudyFolder:
    files.path.mkdir(parents=True)
    return files


def test_a_study_that_cannot_run_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    config = study(tmp_path, constraints=("size_bytes <= 1 kB",))
    with pytest.raises(ConfigError, match="no allocation can meet"):
        run_study(config)
    assert not StudyFolder(tmp_path, "s").config_path.exists()
