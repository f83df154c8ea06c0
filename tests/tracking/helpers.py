"""Invented trials and studies to record in MLflow, and ways to see what it holds."""

from __future__ import annotations

import socket
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pandas as pd
from mlflow import MlflowClient

from slb_autotune.analysis.result import run_row
from slb_autotune.search.records import Record, trial_folder
from slb_autotune.tracking import StudyEntry, Tracker, TrialEntry, make_client
from tests.builders import tiny_config

BEGAN = 1_700_000_000.0
HISTORY = "epoch,train_loss,temperature,lr,val_loss,val_accuracy,quantization_gap,seconds"
RAN_ON = {
    "version": "0.0.1",
    "torch": "2.0.0",
    "machine": "Linux on a worker",
    "device": "cuda:0 (NVIDIA A100)",
    "threads": 3,
    "precision": "bf16",
}
RUNGS = (("rung0", 2), ("full", 4))


def study_folder(runs: Path) -> Path:
    return runs / "studies" / "tiny"


def write_history(folder: Path, epochs: int, offset: float = 0.0) -> None:
    """Invented numbers, with the columns that training writes."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        f"{e},{2 / e},{e * 10.0},{0.1 / e},{1 / e},{offset + e / 3},{0.5 / e},{0.25 * e}"
        for e in range(1, epochs + 1)
    ]
    (folder / "history.csv").write_text("\n".join([HISTORY, *rows]) + "\n")


def entry(
    runs: Path, number: int, status: str = "done", *, on_front=False, stages=RUNGS, **changes
) -> TrialEntry:
    """A trial of a rung of two epochs and a run of four, its folder with it.

    `changes` are of its record.
    """
    folder = trial_folder(study_folder(runs), number)
    if status != "reused":
        write_history(folder / "rung0", 2, number)
    if status in ("done", "running"):
        write_history(folder / "full", 4 if status == "done" else 3, number + 10)
    done = status in ("done", "reused")
    config = tiny_config(T_e=100.0 + number, epochs=4, weight_bits={"layer1.*": 2, "*": 1})
    result = {"val_accuracy": number + 10 + 4 / 3, "seconds": 2.5, "train_images": 64}
    values = {
        "number": number,
        "status": status,
        "config": config,
        "digest": config.digest,
        "params": {"T_e": 100.0 + number, "weight_bits/layer1.*": 2},
        "costs": {"size_bytes": 1000.0 + number},
        "bits": {"layer1.0.conv1": 2, "layer2.0.conv1": 1},
        "metrics": result if done else {},
        "ran_on": RAN_ON,
        "reason": "" if done or status == "running" else f"because of {status}",
        "epochs": 6 if done else 2,
        "started": BEGAN + number,
        "ended": 0.0 if status == "running" else BEGAN + number + 10,
    }
    record = Record(**{**values, **changes})
    row = run_row("tiny", tiny_config().flat(), record, on_front)
    return TrialEntry(row=row, record=record, folder=folder, stages=stages)


def study(runs: Path, **changes) -> StudyEntry:
    values = {
        "name": "tiny",
        "folder": study_folder(runs),
        "started": BEGAN,
        "hypervolume": [(1, 0.25), (2, 0.5)],
        "fronts": [(2, pd.DataFrame({"trial": [0], "val_accuracy": [11.0]}))],
        "tags": {"study": "tiny", "objectives": "val_accuracy, size_bytes"},
    }
    return StudyEntry(**{**values, **changes})


def record(runs: Path, trials: list[TrialEntry], uri: str | None = None, **changes) -> Tracker:
    """A whole session; everything must be delivered."""
    tracker = Tracker(uri, runs, "tiny", study_folder(runs))
    tracker.start()
    tracker.submit(study(runs, **changes), trials)
    assert tracker.close(60) == 0
    return tracker


def uri_of(runs: Path) -> str:
    return f"sqlite:///{runs}/mlflow.db"


def local(runs: Path) -> MlflowClient:
    return make_client(uri_of(runs))


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
