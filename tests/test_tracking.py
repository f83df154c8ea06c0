from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from mlflow import MlflowClient

from slb_autotune import train
from slb_autotune.errors import InputError, SlbError
from slb_autotune.export.packed import load_packed
from slb_autotune.run_table import EPOCH_COLUMNS, RUN_COLUMNS, typed
from slb_autotune.tracking import (
    StudyEntry,
    Tracker,
    TrialEntry,
    _Writer,
    load_epochs,
    load_runs,
    make_client,
    place_of,
    settle_environment,
)
from slb_autotune.training import load_run
from slb_autotune.version import VERSION
from tests.builders import tiny_config

BEGAN = 1_700_000_000.0
HISTORY = "epoch,train_loss,temperature,lr,val_loss,val_accuracy,quantization_gap,seconds"
RUNGS = (("rung0", 2), ("full", 4))


@pytest.fixture(scope="session")
def migrated(tmp_path_factory) -> Path:
    """An empty MLflow database: making its tables takes seconds."""
    settle_environment()
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    make_client(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def runs_folder(tmp_path, migrated, monkeypatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "slb-runs"
    (folder / "studies" / "tiny").mkdir(parents=True)
    (folder / "studies" / "tiny" / "study.yaml").write_text("name: tiny\n")
    shutil.copy(migrated, folder / "mlflow.db")
    return folder


def study_folder(runs: Path) -> Path:
    return runs / "studies" / "tiny"


def write_history(folder: Path, epochs: int, offset: float = 0.0) -> None:
    """Invented numbers, with the columns that training.py writes."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        f"{e},{2 / e},{e * 10.0},{0.1 / e},{1 / e},{offset + e / 3},{0.5 / e},{0.25 * e}"
        for e in range(1, epochs + 1)
    ]
    (folder / "history.csv").write_text("\n".join([HISTORY, *rows]) + "\n")


def entry(runs: Path, number: int, status: str = "done", **changes) -> TrialEntry:
    """A trial of a rung of two epochs and a run of four, its folder with it."""
    folder = study_folder(runs) / "trials" / f"{number:05d}"
    if status != "reused":
        write_history(folder / "rung0", 2, number)
    if status in ("done", "running"):
        write_history(folder / "full", 4 if status == "done" else 3, number + 10)
    done = status in ("done", "reused")
    result = {"val_accuracy": number + 10 + 4 / 3, "seconds": 2.5, "train_images": 64}
    values = {
        "number": number,
        "status": status,
        "reason": "" if done or status == "running" else f"because of {status}",
        "source": "sampler",
        "attempt": 1,
        "config": tiny_config(T_e=100.0 + number, epochs=4, weight_bits={"layer1.*": 2, "*": 1}),
        "params": {"T_e": 100.0 + number, "weight_bits/layer1.*": 2},
        "metrics": {**(result if done else {}), "size_bytes": 1000.0 + number},
        "bits": {"layer1.0.conv1": 2, "layer2.0.conv1": 1},
        "on_front": False,
        "folder": folder,
        "started": BEGAN + number,
        "epochs_spent": 6 if done else 2,
        "stages": RUNGS,
    }
    return TrialEntry(**{**values, **changes})


def study(runs: Path, **changes) -> StudyEntry:
    values = {
        "name": "tiny",
        "folder": study_folder(runs),
        "started": BEGAN,
        "hypervolume": [(1, 0.25), (2, 0.5)],
        "front": pd.DataFrame({"trial": [0], "val_accuracy": [11.0]}),
        "tags": {"objectives": "val_accuracy, size_bytes"},
    }
    return StudyEntry(**{**values, **changes})


def record(runs: Path, trials: list[TrialEntry], uri: str | None = None, **changes) -> Tracker:
    """A whole session; everything must be delivered."""
    tracker = Tracker(uri, runs, "tiny", study_folder(runs))
    tracker.start()
    tracker.submit(study(runs, **changes), trials)
    assert tracker.close(60) == 0
    return tracker


def local(runs: Path) -> MlflowClient:
    return make_client(f"sqlite:///{runs}/mlflow.db")


def rows_of(database: Path, query: str) -> list[tuple]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def contents(database: Path) -> tuple[Counter, Counter]:
    """Runs by (kind, trial), and metric values by (trial, key, step): each is there once."""
    tag = "(select value from tags where key = '{}' and tags.run_uuid = {}.run_uuid)"
    runs = f"select {tag.format('kind', 'runs')}, {tag.format('trial', 'runs')} from runs"
    metrics = f"select {tag.format('trial', 'metrics')}, key, step from metrics"
    return Counter(rows_of(database, runs)), Counter(rows_of(database, metrics))


def artifacts(client: MlflowClient, run: str, where: str | None = None) -> set[str]:
    return {item.path for item in client.list_artifacts(run, where)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


# -- what is recorded ------------------------------------------------------------------------


def test_a_trial_is_a_child_of_its_study(runs_folder):
    tracker = record(runs_folder, [entry(runs_folder, 0), entry(runs_folder, 1)])
    client = local(runs_folder)
    parent = client.get_run(tracker.parent_id)
    assert client.get_experiment(parent.info.experiment_id).name == "tiny"
    assert parent.data.tags["kind"] == "study"
    assert parent.data.tags["objectives"] == "val_accuracy, size_bytes"
    assert set(tracker.run_ids) == {0, 1}
    for number, run_id in tracker.run_ids.items():
        run = client.get_run(run_id)
        assert run.data.tags["mlflow.parentRunId"] == tracker.parent_id
        assert run.data.tags["trial"] == str(number)
        assert run.info.start_time == (BEGAN + number) * 1000


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("done", "FINISHED"),
        ("reused", "FINISHED"),
        ("stopped", "KILLED"),
        ("failed", "FAILED"),
        ("running", "RUNNING"),
    ],
)
def test_a_status_has_a_word_in_mlflow_and_our_own_in_a_tag(runs_folder, status, word):
    tracker = record(runs_folder, [entry(runs_folder, 3, status)])
    run = local(runs_folder).get_run(tracker.run_ids[3])
    assert run.info.status == word
    assert run.data.tags["status"] == status
    assert run.data.tags.get("reason", "") == entry(runs_folder, 3, status).reason


def test_settings_have_readable_names_and_tags_say_where_it_ran(runs_folder):
    tracker = record(runs_folder, [entry(runs_folder, 0)])
    run = local(runs_folder).get_run(tracker.run_ids[0])
    wanted = {"T_e": "100.0", "schedule": "exp", "weight_bits": "mixed", "network": "resnet20"}
    assert wanted.items() <= run.data.params.items()
    assert run.data.params["weight_bits/layer1._"] == "2"
    tags = {"seed": "0", "device": "cpu", "version": VERSION, "attempt": "1", "source": "sampler"}
    assert tags.items() <= run.data.tags.items()


def test_epochs_are_numbered_through_the_rungs(runs_folder):
    tracker = record(runs_folder, [entry(runs_folder, 0)])
    client = local(runs_folder)

    def history(key: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in client.get_metric_history(tracker.run_ids[0], key)]

    assert history("rung") == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 1)]
    assert history("epoch") == [(1, 1), (2, 2), (3, 1), (4, 2), (5, 3), (6, 4)]
    assert history("val_accuracy")[1] == (2, 2 / 3)
    assert history("val_accuracy")[2] == (3, 10 + 1 / 3)
    # Of the trial: 0.25 + 0.5 in the rung, then 0.25, 0.5, 0.75, 1.
    stamps = [m.timestamp for m in client.get_metric_history(tracker.run_ids[0], "epoch")]
    assert [(s - BEGAN * 1000) / 1000 for s in stamps] == [0.25, 0.75, 1.0, 1.5, 2.25, 3.25]
    assert client.get_run(tracker.run_ids[0]).info.end_time == BEGAN * 1000 + 3250


def test_rungs_within_one_run_are_told_apart_by_their_last_epoch(runs_folder):
    stages = (("full", 1), ("full", 3), ("full", 4))
    trial = entry(runs_folder, 0, stages=stages)
    tracker = record(runs_folder, [trial])
    history = local(runs_folder).get_metric_history(tracker.run_ids[0], "rung")
    assert [m.value for m in history] == [0, 1, 1, 2]


def test_a_trial_has_its_files(runs_folder):
    trial = entry(runs_folder, 0)
    tracker = record(runs_folder, [trial])
    client = local(runs_folder)
    assert artifacts(client, tracker.run_ids[0]) == {"config.yaml", "bits.json", "history.csv"}
    folder = Path(client.download_artifacts(tracker.run_ids[0], ""))
    assert (folder / "config.yaml").read_text() == trial.config.to_yaml()
    assert json.loads((folder / "bits.json").read_text()) == trial.bits
    table = pd.read_csv(folder / "history.csv")
    assert table["rung"].tolist() == [0, 0, 1, 1, 1, 1]
    assert table["epoch"].tolist() == [1, 2, 1, 2, 3, 4]
    assert folder.is_relative_to(runs_folder / "mlflow-artifacts")


def test_the_study_has_its_file_fronts_hypervolume_and_status(runs_folder, tmp_path):
    note = tmp_path / "report.html"
    note.write_text("a report")
    tracker = Tracker(None, runs_folder, "tiny", study_folder(runs_folder))
    tracker.start()
    tracker.attach(note, "reports")
    front = pd.DataFrame({"trial": [0, 4], "val_accuracy": [11.0, 12.0]})
    tracker.submit(study(runs_folder), [])
    wait_until(lambda: tracker.parent_id and local_fronts(runs_folder, tracker) == 1)
    later = study(
        runs_folder, front=front, hypervolume=[(1, 0.25), (2, 0.5), (12, 0.75)], status="done"
    )
    tracker.submit(later, [])
    assert tracker.close(60) == 0
    client = local(runs_folder)
    assert artifacts(client, tracker.parent_id) == {"study.yaml", "fronts", "reports"}
    assert artifacts(client, tracker.parent_id, "fronts") == {
        "fronts/front_00002.csv",
        "fronts/front_00012.csv",
    }
    assert artifacts(client, tracker.parent_id, "reports") == {"reports/report.html"}
    history = client.get_metric_history(tracker.parent_id, "hypervolume")
    assert [(m.step, m.value) for m in history] == [(1, 0.25), (2, 0.5), (12, 0.75)]
    assert client.get_run(tracker.parent_id).info.status == "FINISHED"


def local_fronts(runs: Path, tracker: Tracker) -> int:
    return len(artifacts(local(runs), tracker.parent_id, "fronts"))


def test_long_bit_vectors_are_kept_whole(runs_folder):
    bits = {f"stage{i % 4}.block{i}.convolution": 1 + i % 4 for i in range(1500)}
    params = {f"weight_bits/{name}": width for name, width in bits.items()}
    trial = entry(runs_folder, 0, bits=bits, params=params)
    tracker = record(runs_folder, [trial])
    run = local(runs_folder).get_run(tracker.run_ids[0])
    assert len(run.data.params["bits_digest"]) == 10
    assert max(map(len, run.data.params.values())) <= 500
    row = load_runs("tiny", runs_folder=runs_folder).iloc[0]
    assert json.loads(row["bits"]) == bits
    assert json.loads(row["params"]) == trial.params
    path = local(runs_folder).download_artifacts(tracker.run_ids[0], "bits.json")
    assert json.loads(Path(path).read_text()) == bits


def test_the_front_moves(runs_folder, caplog):
    first = entry(runs_folder, 0, on_front=True)
    tracker = record(runs_folder, [first])
    assert load_runs("tiny", runs_folder=runs_folder)["on_front"].tolist() == [True]
    # Its folder has no checkpoint: that is told, and stops nothing.
    assert [r.message for r in caplog.records if "was not packed" in r.message]
    record(runs_folder, [replace(first, on_front=False), entry(runs_folder, 1)])
    assert load_runs("tiny", runs_folder=runs_folder)["on_front"].tolist() == [False, False]
    assert local(runs_folder).get_run(tracker.run_ids[0]).data.tags["on_front"] == "false"


def test_a_member_of_the_front_has_its_packed_network(runs_folder):
    config = tiny_config()
    folder = study_folder(runs_folder) / "trials" / "00000"
    train(config, folder=folder / "full")
    trial = entry(runs_folder, 0, "reused", config=config, stages=(), on_front=True)
    tracker = record(runs_folder, [trial])
    path = local(runs_folder).download_artifacts(tracker.run_ids[0], "network.safetensors")
    x = torch.rand(2, 1, 8, 8)
    _, network = load_run(folder / "full", torch.device("cpu"))
    assert torch.equal(load_packed(Path(path))(x), network(x))


def test_what_an_older_study_kept_of_rays_echo_is_left_out(runs_folder):
    trial = entry(runs_folder, 0)
    echo = {"config/order/config/weight_bits/layer1.*": 2.0, "config/number": 0.0}
    tracker = record(runs_folder, [replace(trial, metrics={**trial.metrics, **echo})])
    metrics = local(runs_folder).get_run(tracker.run_ids[0]).data.metrics
    assert metrics["size_bytes"] == 1000.0
    assert not [name for name in metrics if "/" in name]


# -- once each -------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["nothing", "the file", "part of the file", "its text"])
def test_telling_it_all_again_changes_nothing(runs_folder, lost):
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


def test_what_was_told_is_not_told_again(runs_folder, monkeypatch):
    trials = [entry(runs_folder, n) for n in range(3)]
    record(runs_folder, trials)

    def refuse(*_: object) -> None:
        raise AssertionError("sent again")

    monkeypatch.setattr(_Writer, "_send_rows", refuse)
    monkeypatch.setattr(_Writer, "_send_end", refuse)
    record(runs_folder, trials)


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
    assert load_runs("tiny", runs_folder=runs_folder)["run_id"].tolist() == [new.run_ids[0]]


@pytest.mark.parametrize("call", ["create_run", "log_batch", "log_artifacts", "set_terminated"])
def test_a_call_that_was_heard_but_not_answered_is_not_made_twice(runs_folder, monkeypatch, call):
    real, made = getattr(MlflowClient, call), []

    def unanswered(*arguments, **named):
        result = real(*arguments, **named)
        made.append(call)
        if len(made) in (1, 3):
            raise ConnectionError("the answer was lost")
        return result

    monkeypatch.setattr(MlflowClient, call, unanswered)
    record(runs_folder, [entry(runs_folder, 0), entry(runs_folder, 1)])
    assert len(made) >= 3
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
from tests.test_tracking import entry, study, study_folder

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
    made = rows_of(database, "select count(*) from runs")[0][0]
    assert made < 21, "it was killed too late to show anything"
    record(runs_folder, [entry(runs_folder, number) for number in range(20)])
    runs, metrics = contents(database)
    assert len(runs) == 21
    assert set(runs.values()) == set(metrics.values()) == {1}
    assert sum(key == "epoch" for _, key, _ in metrics) == 20 * 6


# -- a server that goes away -----------------------------------------------------------------


class Server:
    """A real `mlflow server`, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        options += ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"]
        options += ["--artifacts-destination", str(self.folder / "artifacts")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *options],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        )
        wait_until(self.answers, 120)

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture
def server(tmp_path, migrated):
    folder = tmp_path / "server"
    folder.mkdir()
    shutil.copy(migrated, folder / "mlflow.db")
    server = Server(folder)
    yield server
    server.kill()


@pytest.mark.slow
def test_a_server_killed_in_the_middle_gets_everything_once(runs_folder, server, caplog, capfd):
    server.start()
    tracker = Tracker(server.uri, runs_folder, "tiny", study_folder(runs_folder))
    tracker.start()
    database = server.folder / "mlflow.db"
    trials = [entry(runs_folder, number) for number in range(30)]
    tracker.submit(study(runs_folder), trials[:20])
    wait_until(lambda: rows_of(database, "select count(*) from runs")[0][0] > 4)
    server.kill()
    tracker.submit(study(runs_folder), trials[20:])
    wait_until(lambda: any("out of reach" in r.message for r in caplog.records))
    server.start()
    assert tracker.close(300) == 0
    runs, metrics = contents(database)
    assert len(runs) == 31
    assert set(runs.values()) == set(metrics.values()) == {1}
    assert sum(key == "epoch" for _, key, _ in metrics) == 30 * 6
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
    found = load_epochs("tiny", uri=server.uri)
    assert len(found) == 30 * 6
    assert capfd.readouterr().out == ""


def test_what_an_absent_server_missed_is_delivered_later(runs_folder, tmp_path, caplog):
    note = tmp_path / "note.txt"
    note.write_text("a note")
    uri = f"sqlite:///{tmp_path}/later/mlflow.db"
    absent = f"http://someone:secret@127.0.0.1:{free_port()}"
    tracker = Tracker(absent, runs_folder, "tiny", study_folder(runs_folder))
    tracker.start()
    tracker.attach(note, "notes")
    tracker.submit(study(runs_folder), [entry(runs_folder, 0), entry(runs_folder, 1)])
    assert tracker.close(8) == 2
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "secret" not in warnings[0]
    (tmp_path / "later").mkdir()
    shutil.copy(runs_folder / "mlflow.db", tmp_path / "later")
    later = record(runs_folder, [entry(runs_folder, 0), entry(runs_folder, 1)], uri)
    assert artifacts(make_client(uri), later.parent_id, "notes") == {"notes/note.txt"}
    assert len(load_runs("tiny", uri)) == 2


def test_a_trial_that_cannot_be_recorded_stops_no_other(runs_folder, caplog):
    broken = entry(runs_folder, 0)
    (broken.folder / "full" / "history.csv").write_text("epoch,seconds\n1,soon\n")
    tracker = Tracker(None, runs_folder, "tiny", study_folder(runs_folder))
    tracker.start()
    tracker.submit(study(runs_folder), [broken, entry(runs_folder, 1)])
    assert tracker.close(60) == 1
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("trial 0 cannot be recorded: ValueError")
    found = load_runs("tiny", runs_folder=runs_folder).set_index("trial")["status"]
    assert found[1] == "done"


# -- reading back ----------------------------------------------------------------------------


def test_runs_come_back_typed_and_whole(runs_folder, monkeypatch):
    monkeypatch.setattr("slb_autotune.tracking.PAGE", 2)
    statuses = ["done", "stopped", "failed", "running", "reused"]
    trials = [entry(runs_folder, n, s) for n, s in enumerate(statuses)]
    tracker = record(runs_folder, trials)
    frame = load_runs("tiny", runs_folder=runs_folder)
    assert list(frame.columns) == list(RUN_COLUMNS)
    assert (
        frame.dtypes.astype("str").tolist() == typed([], RUN_COLUMNS).dtypes.astype("str").tolist()
    )
    assert frame["trial"].tolist() == [0, 1, 2, 3, 4]
    assert frame["status"].tolist() == statuses
    assert frame["run_id"].tolist() == [tracker.run_ids[n] for n in range(5)]
    assert frame["T_e"].tolist() == [100.0, 101.0, 102.0, 103.0, 104.0]
    assert frame["lr"].tolist() == [0.1] * 5
    assert frame["size_bytes"].dropna().tolist() == [1000, 1001, 1002, 1004]
    assert frame["command"][1] == "slb-autotune train tiny:1"
    # A trial that did not finish has no result, however good its last epoch was.
    assert frame["val_accuracy"].isna().tolist() == [False, True, True, True, False]
    assert frame["val_accuracy"][0] == 10 + 4 / 3
    assert frame["seconds"][0] == 2.5
    assert frame["epochs_spent"].dropna().tolist() == [6, 2, 2, 6]
    assert frame["train_images"][0] == 64


def test_epochs_come_back_as_the_folders_have_them(runs_folder):
    trials = [entry(runs_folder, n, s) for n, s in enumerate(["done", "running", "reused"])]
    record(runs_folder, trials)
    frame = load_epochs("tiny", runs_folder=runs_folder)
    assert list(frame.columns) == list(EPOCH_COLUMNS)
    assert frame["trial"].tolist() == [0] * 6 + [1] * 5
    assert frame["rung"].tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1]
    for number in (0, 1):
        mine = frame[frame["trial"] == number]
        parts = [pd.read_csv(trials[number].folder / n / "history.csv") for n in ("rung0", "full")]
        wanted = pd.concat(parts)
        for name in HISTORY.split(","):
            assert mine[name].tolist() == pytest.approx(wanted[name].tolist(), rel=1e-15), name


def test_all_studies_or_one(runs_folder):
    record(runs_folder, [entry(runs_folder, 0)])
    assert len(load_runs(runs_folder=runs_folder)) == 1
    with pytest.raises(InputError, match=r"no study 'tinny' Hint: did you mean 'tiny'"):
        load_runs("tinny", runs_folder=runs_folder)


def test_reading_where_nothing_is_says_so_and_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(InputError, match="nothing is recorded"):
        load_runs(runs_folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SlbError, match=r"MLflow at 127.0.0.1:\d+ cannot be read"):
        load_runs(uri=f"http://127.0.0.1:{free_port()}")


def test_settings_of_the_user_are_kept(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    settle_environment()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("http://someone:secret@host:5000/path", "host:5000"),
        ("sqlite:////a/b/mlflow.db", "mlflow.db"),
    ],
)
def test_a_place_is_named_without_secrets(uri, place):
    assert place_of(uri) == place
