"""Trials and epochs as tables: the same from a study's folder and from MLflow."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import slb_autotune
from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS, typed
from slb_autotune.errors import InputError, SlbError
from slb_autotune.search.ledger import Ledger
from slb_autotune.search.records import Outcome, trial_folder
from slb_autotune.search.storage import StudyFolder, open_ledger
from slb_autotune.search.worker import Assignment
from slb_autotune.tracking import MlflowRecorder, load_epochs, load_runs
from tests.builders import fake_row, tiny_study
from tests.tracking.helpers import BEGAN, HISTORY, RAN_ON, entry, free_port, record, uri_of

STATUSES = ["done", "stopped", "failed", "running", "reused"]


# -- a study with trials of every kind ---------------------------------------------------------


def open_study(runs: Path, name: str) -> Ledger:
    config = tiny_study(
        name=name,
        trial={**tiny_study().trial, "epochs": 4},
        space={"T_e": [10, 100, 1000], "weight_bits": [1, 2, 4]},
        early_stopping={"rungs": [0.5], "spared": 0, "minimum": 4},
        sampler="random",
        budget={"trials": 20},
        storage={"folder": str(runs)},
    )
    files = StudyFolder(runs, name)
    files.path.mkdir(parents=True, exist_ok=True)
    files.config_path.write_text(config.to_yaml())
    files.save_sessions([{"version": "1.2.3", "started": BEGAN, "seconds": 1.0}])
    return open_ledger(config, files)


def report(ledger: Ledger, number: int, assignment: Assignment, phase: int, **changes) -> dict:
    """What a worker reports after a phase; its history is in the trial's folder."""
    until = assignment.phases[phase].until
    ran_on = json.dumps({**RAN_ON, "threads": number + 1})
    status = "rung" if phase == 0 else "done"
    last = fake_row(assignment, until, status=status, ran_on=ran_on, **changes)
    epochs = [fake_row(assignment, epoch, **changes) for epoch in range(1, until + 1)]
    names = ["epoch", "val_accuracy", "train_loss", "seconds"]
    folder = trial_folder(ledger.folder, number) / ("rung0", "full")[phase]
    folder.mkdir(parents=True)
    table = pd.DataFrame(epochs)[names].assign(seconds=1 / 3, lr=0.01)
    table.to_csv(folder / "history.csv", index=False)
    return {**last, "seconds": until / 3, "train_images": 64, "lr": 0.01}


def fill(ledger: Ledger) -> None:
    """Two trials that finish, one that fails, one that lags behind, one that never ends."""
    accuracy = {"done": 80.0, "failed": 85.0, "stopped": 1.0, "running": 90.0}
    for outcome in ("done", "done", "failed", "stopped", "running"):
        number, assignment = ask(ledger)
        row = report(ledger, number, assignment, 0, val_accuracy=accuracy[outcome])
        assert ledger.tell_rung(number, 0, row) == (outcome != "stopped")
        if outcome == "done":
            ledger.tell(number, report(ledger, number, assignment, 1))
        elif outcome == "failed":
            ledger.tell_failed(number, "the loss became nan in epoch 3")
    while not ledger.snapshot().with_status("reused"):
        ask(ledger)


def ask(ledger: Ledger) -> tuple[int, Assignment]:
    found = ledger.ask()
    assert found is not None
    return found


@pytest.fixture
def filled(runs_folder) -> Path:
    """A run folder with two studies, recorded in MLflow too."""
    for name in ("one", "two"):
        ledger = open_study(runs_folder, name)
        sessions = StudyFolder(runs_folder, name).sessions()
        recorder = MlflowRecorder(ledger.config)
        recorder.on_start(ledger.snapshot(sessions))
        fill(ledger)
        recorder.on_end(Outcome(ledger.snapshot(sessions), "interrupted", 1.0))
        assert recorder.waiting == 0
    (runs_folder / "studies" / "tiny" / "study.yaml").unlink()
    return runs_folder


@pytest.mark.parametrize("study", ["one", None])
def test_a_folder_and_mlflow_give_the_same_runs(filled, study):
    ours = load_runs(study, runs_folder=filled)
    theirs = load_runs(study, uri=uri_of(filled))
    assert set(ours["study"]) == ({"one", "two"} if study is None else {"one"})
    assert set(ours["status"]) >= {"done", "failed", "stopped", "running", "reused"}
    assert ours["on_front"].any()
    assert ours["threads"].notna().any()
    for column in RUN_COLUMNS:
        pd.testing.assert_series_equal(ours[column], theirs[column])


def test_a_folder_and_mlflow_give_the_same_epochs(filled):
    ours, theirs = load_epochs(runs_folder=filled), load_epochs(uri=uri_of(filled))
    assert len(ours) > 20
    pd.testing.assert_frame_equal(ours, theirs)


def test_a_folder_needs_no_mlflow(filled):
    expected = load_runs("one", runs_folder=filled)
    (filled / "mlflow.db").unlink()
    pd.testing.assert_frame_equal(slb_autotune.load_runs("one", runs_folder=filled), expected)
    (filled / "studies" / "one" / "tracking.json").unlink()
    found = load_runs("one", runs_folder=filled)
    assert set(found["run_id"]) == {""}
    pd.testing.assert_frame_equal(found.assign(run_id=expected["run_id"]), expected)


def test_a_study_that_was_killed_before_it_began_has_no_rows(filled):
    folder = filled / "studies" / "unbegun"
    folder.mkdir()
    (folder / "study.yaml").write_text(tiny_study(name="unbegun").to_yaml())
    assert set(load_runs(runs_folder=filled)["study"]) == {"one", "two"}


# -- from MLflow alone -------------------------------------------------------------------------


def test_runs_come_back_typed_and_whole(runs_folder, monkeypatch):
    monkeypatch.setattr("slb_autotune.tracking.store.PAGE", 2)
    trials = [entry(runs_folder, n, s) for n, s in enumerate(STATUSES)]
    tracker = record(runs_folder, trials)
    frame = load_runs("tiny", uri_of(runs_folder))
    assert list(frame.columns) == list(RUN_COLUMNS)
    assert (
        frame.dtypes.astype("str").tolist() == typed([], RUN_COLUMNS).dtypes.astype("str").tolist()
    )
    assert frame["trial"].tolist() == [0, 1, 2, 3, 4]
    assert frame["status"].tolist() == STATUSES
    assert frame["run_id"].tolist() == [tracker.run_ids[n] for n in range(5)]
    assert frame["T_e"].tolist() == [100.0, 101.0, 102.0, 103.0, 104.0]
    assert frame["lr"].tolist() == [0.1] * 5
    assert frame["size_bytes"].tolist() == [1000, 1001, 1002, 1003, 1004]
    assert frame["command"][1] == "slb-autotune train tiny:1"
    # A trial that did not finish has no result, however good its last epoch was.
    assert frame["val_accuracy"].isna().tolist() == [False, True, True, True, False]
    assert frame["val_accuracy"][0] == 10 + 4 / 3
    assert frame["seconds"][0] == 2.5
    assert frame["epochs_spent"].tolist() == [6, 2, 2, 2, 6]
    assert frame["train_images"][0] == 64
    assert frame["digest"][0] == trials[0].record.digest
    assert frame[["device", "threads"]].drop_duplicates().values.tolist() == [
        ["cuda:0 (NVIDIA A100)", 3]
    ]


def test_epochs_come_back_as_the_folders_have_them(runs_folder):
    trials = [entry(runs_folder, n, s) for n, s in enumerate(["done", "running", "reused"])]
    record(runs_folder, trials)
    frame = load_epochs("tiny", uri_of(runs_folder))
    assert list(frame.columns) == list(EPOCH_COLUMNS)
    assert frame["trial"].tolist() == [0] * 6 + [1] * 5
    assert frame["rung"].tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1]
    for number in (0, 1):
        mine = frame[frame["trial"] == number]
        parts = [pd.read_csv(trials[number].folder / n / "history.csv") for n in ("rung0", "full")]
        wanted = pd.concat(parts)
        for name in HISTORY.split(","):
            assert mine[name].tolist() == pytest.approx(wanted[name].tolist(), rel=1e-15), name


# -- errors ------------------------------------------------------------------------------------


def test_an_unknown_study_is_answered_with_the_nearest(filled):
    with pytest.raises(InputError, match=r"there is no study 'onne' Hint: did you mean 'one'"):
        load_runs("onne", runs_folder=filled)
    with pytest.raises(InputError, match=r"MLflow has no study 'onne' Hint: did you mean 'one'"):
        load_epochs("onne", uri=uri_of(filled))


def test_reading_where_nothing_is_says_so_and_creates_nothing(tmp_path):
    with pytest.raises(InputError, match="nothing is recorded"):
        load_runs(runs_folder=tmp_path)
    with pytest.raises(InputError, match="nothing is recorded"):
        load_epochs("one", runs_folder=tmp_path / "absent")
    with pytest.raises(InputError, match=r"nothing is recorded in mlflow\.db"):
        load_runs(uri=uri_of(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SlbError, match=r"MLflow at 127.0.0.1:\d+ cannot be read"):
        load_runs(uri=f"http://127.0.0.1:{free_port()}")
