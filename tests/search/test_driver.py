"""Studies with real Ray and real Optuna storage."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import ray
from mlflow import MlflowClient
from typer.testing import CliRunner

from slb_autotune.analysis.frames import epoch_frame, run_frame
from slb_autotune.bench.harness import idle_study
from slb_autotune.cli.main import app
from slb_autotune.config.study import StudyConfig
from slb_autotune.errors import ConfigError, InputError
from slb_autotune.search.cluster import LedgerSearcher, RungScheduler, StudyStopper, start_ray
from slb_autotune.search.driver import Outcome, check_study, run_study
from slb_autotune.search.ledger import Ledger, Record, StudyStopped
from slb_autotune.search.storage import StudyFolder, open_ledger
from slb_autotune.tracking import load_epochs, load_runs
from slb_autotune.training.loop import train

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


def recorded_study(folder: Path, trials: int, concurrent: int) -> StudyConfig:
    """With rungs that everything passes, recorded in MLflow."""
    return study(
        folder,
        budget={"trials": trials},
        resources={"concurrent": concurrent},
        early_stopping={"rungs": [0.5], "spared": 1.0},
        storage={"folder": str(folder), "mlflow": f"sqlite:///{folder}/mlflow.db"},
    )


@pytest.fixture(scope="module")
def finished(folder: Path) -> Outcome:
    return run_study(recorded_study(folder, trials=4, concurrent=2))


@pytest.fixture(scope="module")
def continued(finished: Outcome, folder: Path) -> Ledger:
    """The same, finished already, given two trials more, one at a time."""
    return run_study(recorded_study(folder, trials=6, concurrent=1), resume=True).ledger


def test_a_study_runs_to_its_budget(finished: Outcome) -> None:
    ledger = finished.ledger
    assert len(ledger.with_status("done")) == 4
    assert [record.source for record in sorted(ledger.records.values(), key=_number)] == [
        *("uniform 1 bit", "uniform 2 bit", "uniform 4 bit"),
        "paper",
    ]
    assert not finished.interrupted
    assert ledger.front()
    assert 0 < ledger.hypervolume() < 1
    assert ledger.epochs_spent() == 4 * (1 + 2)


def _number(record: Record) -> int:
    return record.number


def test_a_finished_study_can_be_given_more(finished: Outcome, continued: Ledger) -> None:
    assert len(continued.with_status("done", "reused")) == 6
    assert {n: continued.records[n].metrics for n in range(4)} == {
        n: finished.ledger.records[n].metrics for n in range(4)
    }
    with pytest.raises(InputError, match="study 's' exists already"):
        run_study(continued.config)


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Seven listed points, one after the other: four that train and three that do not."""
    folder = tmp_path_factory.mktemp("runs")
    again = {"weight_bits": 4, "seed": 3}
    killer = {
        "name": "tests.search.networks:killer",
        "options": {"marker": str(folder / "killed")},
    }
    points = [
        *(again, {"weight_bits": 1}, {"activation_bits": 2}, again),
        {"optimizer.lr": 1e30, "lr_schedule.name": "constant"},
        {"network.name": "tests.search.networks:broken"},
        {"network": killer},
    ]
    return run_study(study(folder, points=points)).ledger


def test_a_trial_has_the_same_numbers_alone_after_another_and_from_train(listed: Ledger) -> None:
    for number in range(3):
        record = listed.records[number]
        alone = train(record.config).metrics
        for name in ("val_accuracy", "val_loss", "train_loss", "quantization_gap", "size_bytes"):
            assert record.metrics[name] == alone[name], name
    # What was trained before is not trained again, and is marked.
    repeated = listed.records[3]
    assert (repeated.status, repeated.reused_from) == ("reused", 0)
    assert repeated.metrics == listed.records[0].metrics
    assert not listed.trial_folder(3).exists()


def test_trials_that_lag_behind_are_stopped_and_pruned(tmp_path: Path) -> None:
    points = [{"T_e": T_e} for T_e in (1000.0, 800.0, 600.0, 500.0, 1.0, 1.5)]
    config = study(
        tmp_path,
        trial={"epochs": 4},
        points=points,
        objectives={"quantization_gap": "minimize"},  # T_e alone decides it, however short
        early_stopping={"rungs": [0.5], "minimum": 4, "spared": 0.0},
    )
    ledger = run_study(config).ledger
    stopped = ledger.with_status("stopped")
    assert stopped
    assert ledger.with_status("done")
    states = {trial.number: trial.state.name for trial in ledger.study.trials}
    assert {states[record.number] for record in stopped} == {"PRUNED"}
    assert all(record.epochs == 2 for record in stopped)
    assert all(record.epochs == 6 for record in ledger.with_status("done"))


class TestFailures:
    def test_a_failing_trial_is_recorded_and_a_killed_worker_tried_again(
        self, listed: Ledger
    ) -> None:
        statuses = [listed.records[n].status for n in range(7)]
        assert statuses == ["done"] * 3 + ["reused", "failed", "failed", "done"]
        assert Path(listed.records[6].config.network.options["marker"]).exists()
        assert "the loss became nan in epoch 1" in listed.records[4].reason
        assert listed.records[5].reason == 'KeyError: "a bug of the user\'s"'
        assert "in forward" in (listed.trial_folder(5) / "error.txt").read_text()

    def test_the_same_failure_again_and_again_stops_the_study(self, tmp_path: Path) -> None:
        trial = {"network": {"name": "tests.search.networks:broken", "width": 4}}
        config = study(tmp_path, trial=trial, budget={"trials": 30})
        with pytest.raises(StudyStopped, match="every trial failed for the same reason: KeyError"):
            run_study(config)
        files = StudyFolder(tmp_path, "s")
        assert len(open_ledger(config, files).records) < 10


def test_what_ray_pickles_holds_no_storage(tmp_path: Path) -> None:
    config = study(tmp_path)
    ledger = open_ledger(config, _made(StudyFolder(tmp_path, "s")))
    for thing in (
        LedgerSearcher(ledger, lambda: None),
        RungScheduler(ledger, lambda: None),
        StudyStopper(lambda: False),
    ):
        assert len(pickle.dumps(thing)) < 2000


def _made(files: StudyFolder) -> StudyFolder:
    files.path.mkdir(parents=True)
    return files


def test_a_constraint_that_nothing_can_meet_is_refused(tmp_path: Path) -> None:
    config = study(tmp_path, constraints=("size_bytes <= 1 kB",))
    with pytest.raises(ConfigError, match="no allocation can meet size_bytes <= 1000"):
        check_study(config)


def test_a_study_that_cannot_run_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    config = study(tmp_path, constraints=("size_bytes <= 1 kB",))
    with pytest.raises(ConfigError, match="no allocation can meet"):
        run_study(config)
    assert not StudyFolder(tmp_path, "s").config_path.exists()


def test_confirm_and_recommend(continued: Ledger, folder: Path) -> None:
    runner = CliRunner()
    chosen = runner.invoke(app, ["recommend", "s", "--runs", str(folder), "--json"])
    front = {record.number for record in continued.front()}
    assert json.loads(chosen.stdout)["trial"] in front
    refused = runner.invoke(app, ["recommend", "s", "--runs", str(folder), "--size", "1kB"])
    assert "no member of the front fits 1,000 bytes" in str(refused.exception)
    short = ["--seeds", "2", "--epochs", "1"]
    result = runner.invoke(app, ["confirm", "s", *short, "--runs", str(folder), "--json"])
    rows = json.loads(result.stdout)
    assert {row["seeds"] for row in rows} == {2}
    assert all(0 <= row["test_accuracy"] <= 100 for row in rows)
    assert len(rows) == len(front)


def test_mlflow_holds_the_study_its_trials_and_the_front(continued: Ledger) -> None:
    ledger, uri = continued, continued.config.storage.mlflow
    runs = load_runs("s", uri=uri).set_index("trial")
    mine = run_frame(ledger).set_index("trial")
    assert sorted(runs.index) == sorted(mine.index) == list(range(6))
    for name in ("status", "source", "on_front", "val_accuracy", "size_bytes", "T_e", "bits"):
        assert runs[name].sort_index().tolist() == mine[name].sort_index().tolist(), name
    assert runs["run_id"].nunique() == 6
    recorded = load_epochs("s", uri=uri)
    written = epoch_frame(ledger)
    columns = ["trial", "rung", "epoch", "val_accuracy", "temperature"]
    order = columns[:3]
    pd.testing.assert_frame_equal(
        recorded[columns].sort_values(order, ignore_index=True),
        written[columns].sort_values(order, ignore_index=True),
    )
    client = MlflowClient(uri)
    (parent,) = [
        run
        for run in client.search_runs([client.get_experiment_by_name("s").experiment_id])
        if "mlflow.parentRunId" not in run.data.tags
    ]
    grown = client.get_metric_history(parent.info.run_id, "hypervolume")
    assert max(metric.value for metric in grown) == pytest.approx(ledger.hypervolume())
    assert parent.info.status == "FINISHED"
    assert "study.yaml" in {file.path for file in client.list_artifacts(parent.info.run_id)}
    member = runs.loc[ledger.front()[0].number, "run_id"]
    files = {file.path for file in client.list_artifacts(member)}
    assert {"config.yaml", "bits.json", "history.csv", "network.safetensors"} <= files


def test_a_study_that_trains_nothing_is_recorded_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (row,) = idle_study(trials=3, concurrent=2).to_dict("records")
    assert row["trials"] == 3
    assert row["s_per_trial"] == pytest.approx(row["wall_s"] / 3)
    client = MlflowClient(uri)
    for run in load_runs("idle", uri=uri)["run_id"]:
        told = client.get_metric_history(run, "metric_3")
        assert [metric.step for metric in told] == list(range(1, 11))


def test_a_setting_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["confirm", "s", "--set", "epochs=1", "--runs", str(tmp_path)])
    assert isinstance(told.exception, InputError)
    assert "--set and --only are for a study file" in told.exception.message
