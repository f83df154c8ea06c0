"""Whatever is lost or killed in between, MLflow has everything once."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys

import pytest
from mlflow import MlflowClient

from slb_autotune.tracking import Tracker, load_runs
from tests.tracking.helpers import (
    BEGAN,
    artifacts,
    contents,
    entry,
    local,
    record,
    rows_of,
    study,
    study_folder,
    uri_of,
    wait_until,
    write_history,
)


@pytest.mark.parametrize("lost", ["nothing", "the file", "part of the file", "its text"])
def test_sending_it_all_again_changes_nothing(runs_folder, lost):
    trials = [entry(runs_folder, n, s) for n, s in enumerate(["done", "stopped", "running"])]
    tracker = record(runs_folder, trials)
    before = contents(runs_folder / "mlflow.db")
    assert set(before[0].values()) == set(before[1].values()) == {1}
    path = study_folder(runs_folder) / "tracking.json"
    state = json.loads(path.read_text())
    if lost == "the file":
        path.unlink()
    elif lost == "part of the file":
        state["trials"].pop("1")
        path.write_text(json.dumps(state))
    elif lost == "its text":
        path.write_text("{")
    again = record(runs_folder, trials)
    assert contents(runs_folder / "mlflow.db") == before
    assert again.run_ids == tracker.run_ids
    assert again.parent_id == tracker.parent_id


def test_what_was_logged_is_not_sent_again(runs_folder, monkeypatch):
    trials = [entry(runs_folder, n, on_front=n == 1) for n in range(3)]
    record(runs_folder, trials)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("sent again")

    for call in ("create_run", "log_batch", "log_artifact", "log_artifacts", "set_tag"):
        monkeypatch.setattr(MlflowClient, call, refuse)
    record(runs_folder, trials)


def test_what_an_earlier_version_remembered_is_found_in_mlflow_instead(runs_folder, tmp_path):
    trials = [entry(runs_folder, n) for n in range(2)]
    tracker = record(runs_folder, trials)
    before = contents(runs_folder / "mlflow.db")
    note = tmp_path / "note.txt"
    note.write_text("still to be sent")
    path = study_folder(runs_folder) / "tracking.json"
    state = json.loads(path.read_text())
    runs = {n: {"run": r, "start": 0, "told": "x"} for n, r in tracker.run_ids.items()}
    old = {"study": {"fronts": 2}, "trials": runs, "files": [[str(note), "notes"]]}
    path.write_text(json.dumps({"store": state["store"], "parent": state["parent"], **old}))
    again = record(runs_folder, trials)
    assert contents(runs_folder / "mlflow.db") == before
    assert again.run_ids == tracker.run_ids
    assert artifacts(local(runs_folder), again.parent_id, "notes") == {"notes/note.txt"}


def test_a_running_trial_is_followed_without_being_submitted_again(runs_folder):
    trial = entry(runs_folder, 0, "running")
    tracker = Tracker(None, runs_folder, "tiny", study_folder(runs_folder))
    tracker.start()
    tracker.submit(study(runs_folder), [trial])

    def steps() -> int:
        return sum(key == "epoch" for _, key, _ in contents(runs_folder / "mlflow.db")[1])

    wait_until(lambda: steps() == 5)
    write_history(trial.folder / "full", 4, 10)
    wait_until(lambda: steps() == 6)
    assert tracker.close(60) == 0
    assert set(contents(runs_folder / "mlflow.db")[1].values()) == {1}


def test_a_new_study_of_an_old_name_has_runs_of_its_own(runs_folder):
    old = record(runs_folder, [entry(runs_folder, 0), entry(runs_folder, 1)])
    (study_folder(runs_folder) / "tracking.json").unlink()
    again = entry(runs_folder, 0, started=BEGAN + 1000)
    new = record(runs_folder, [again], started=BEGAN + 999)
    assert new.parent_id != old.parent_id
    assert new.run_ids[0] not in old.run_ids.values()
    assert load_runs("tiny", uri_of(runs_folder))["run_id"].tolist() == [new.run_ids[0]]


@pytest.mark.parametrize("call", ["create_run", "log_batch", "log_artifacts", "set_terminated"])
def test_a_call_whose_answer_was_lost_is_repeated_without_harm(runs_folder, monkeypatch, call):
    real, calls = getattr(MlflowClient, call), []

    def unanswered(*arguments, **named):
        result = real(*arguments, **named)
        calls.append(call)
        if len(calls) in (1, 3):
            raise ConnectionError("the answer was lost")
        return result

    monkeypatch.setattr(MlflowClient, call, unanswered)
    record(runs_folder, [entry(runs_folder, 0), entry(runs_folder, 1)])
    assert len(calls) >= 3
    runs, metrics = contents(runs_folder / "mlflow.db")
    assert runs == {("study", None): 1, ("trial", "0"): 1, ("trial", "1"): 1}
    assert set(metrics.values()) == {1}


def test_an_emptied_store_is_filled_again(runs_folder, migrated):
    trials = [entry(runs_folder, 0), entry(runs_folder, 1)]
    record(runs_folder, trials)
    before = contents(runs_folder / "mlflow.db")
    shutil.copy(migrated, runs_folder / "mlflow.db")
    record(runs_folder, trials)
    assert contents(runs_folder / "mlflow.db") == before


KILLED = """
import sys
from pathlib import Path
from slb_autotune.tracking import Tracker
from tests.tracking.helpers import entry, study, study_folder

runs = Path(sys.argv[1])
tracker = Tracker(None, runs, "tiny", study_folder(runs))
tracker.start()
tracker.submit(study(runs), [entry(runs, number) for number in range(20)])
tracker.close(600)
"""


@pytest.mark.slow
def test_a_tracker_that_was_killed_is_followed_by_another(runs_folder):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(runs_folder)], start_new_session=True
    )
    database = runs_folder / "mlflow.db"
    try:
        wait_until(lambda: rows_of(database, "select count(*) from runs")[0][0] > 5)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    created = rows_of(database, "select count(*) from runs")[0][0]
    assert created < 21, "it was killed too late to show anything"
    record(runs_folder, [entry(runs_folder, number) for number in range(20)])
    runs, metrics = contents(database)
    assert len(runs) == 21
    assert set(runs.values()) == set(metrics.values()) == {1}
    assert sum(key == "epoch" for _, key, _ in metrics) == 20 * 6
