"""A server that was unavailable is sent later what it missed; a refused trial stops no other."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from slb_autotune.tracking import Tracker, TrialEntry, load_epochs, load_runs, make_client
from slb_autotune.tracking.writer import Writer
from tests.tracking.helpers import (
    artifacts,
    contents,
    entry,
    free_port,
    record,
    rows_of,
    study,
    study_folder,
    uri_of,
    wait_until,
)


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
    wait_until(lambda: any("is unavailable" in r.message for r in caplog.records))
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


def test_what_an_unavailable_server_missed_is_sent_later(runs_folder, tmp_path, caplog):
    note = tmp_path / "note.txt"
    note.write_text("a note")
    uri = f"sqlite:///{tmp_path}/later/mlflow.db"
    absent = f"http://someone:secret@127.0.0.1:{free_port()}"
    tracker = Tracker(absent, runs_folder, "tiny", study_folder(runs_folder))
    tracker.start()
    tracker.attach(note, "notes")
    tracker.submit(study(runs_folder), [entry(runs_folder, 0), entry(runs_folder, 1)])
    assert tracker.close(2) == 2
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "secret" not in warnings[0]
    (tmp_path / "later").mkdir()
    shutil.copy(runs_folder / "mlflow.db", tmp_path / "later")
    later = record(runs_folder, [entry(runs_folder, 0), entry(runs_folder, 1)], uri)
    assert artifacts(make_client(uri), later.parent_id, "notes") == {"notes/note.txt"}
    assert len(load_runs("tiny", uri)) == 2


def test_a_call_that_hangs_is_abandoned_without_harm(runs_folder, monkeypatch):
    """The next tracker of the same process has what was saved to itself."""
    hang, sent = threading.Event(), Writer.send_trial

    def slow(writer: Writer, trial: TrialEntry) -> None:
        sent(writer, trial)
        hang.wait(60)

    monkeypatch.setattr(Writer, "send_trial", slow)
    tracker = Tracker(None, runs_folder, "tiny", study_folder(runs_folder))
    tracker.start()
    tracker.submit(study(runs_folder), [entry(runs_folder, 0)])
    wait_until(lambda: 0 in tracker.run_ids)
    assert tracker.close(0.1) == 1
    monkeypatch.setattr(Writer, "send_trial", sent)
    record(runs_folder, [entry(runs_folder, 0), entry(runs_folder, 1)])
    saved = (study_folder(runs_folder) / "tracking.json").read_bytes()
    hang.set()
    wait_until(lambda: not any(thread.name == "mlflow" for thread in threading.enumerate()))
    assert (study_folder(runs_folder) / "tracking.json").read_bytes() == saved
    runs, metrics = contents(runs_folder / "mlflow.db")
    assert len(runs) == 3
    assert set(runs.values()) == set(metrics.values()) == {1}


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
    found = load_runs("tiny", uri_of(runs_folder)).set_index("trial")["status"]
    assert found[1] == "done"
