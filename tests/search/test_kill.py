"""A study whose driver is killed with SIGKILL resumes: nothing lost, nothing run twice."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from slb_autotune.search.ledger import Ledger
from slb_autotune.search.storage import StudyFolder, open_ledger

STUDY = {
    "name": "killed",
    "trial": {
        "network": {"name": "resnet20", "width": 4},
        "data": {"name": "digits", "train_images": 150},
        "batch_size": 50,
        "epochs": 3,
        "device": "cpu",
    },
    "space": {
        "T_e": {"log": [1, 10000]},
        "lr": {"log": [0.02, 0.4]},
        "weight_bits": {"choices": [1, 2, 4], "per": "stage"},
    },
    "budget": {"trials": 5},
    "sampler": {"name": "tpe", "startup_trials": 2},
    "warm_start": {"uniform": True, "paper": False},
    "early_stopping": {"rungs": [0.34], "minimum": 3},
}


def write_study(folder: Path, concurrent: int, trials: int = 5) -> Path:
    study = {
        **STUDY,
        "budget": {"trials": trials},
        "resources": {"concurrent": concurrent},
        "storage": {"folder": str(folder / "runs"), "mlflow": "off"},
    }
    path = folder / "killed.yaml"
    path.write_text(yaml.safe_dump(study))
    return path


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "slb_autotune", *words]
    log = (folder / "log.txt").open("ab")
    return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def ledger_of(folder: Path) -> Ledger:
    files = StudyFolder(folder / "runs", "killed")
    return open_ledger(files.config(), files)


def checkpoints(folder: Path) -> int:
    """Whole epochs on disk so far, over all trials and rungs."""
    total = 0
    for path in (folder / "runs" / "studies" / "killed" / "trials").glob("*/*/history.csv"):
        total += max(0, len(path.read_text().splitlines()) - 1)
    return total


def run_to_the_end(folder: Path, kills: int) -> Ledger:
    """Run the study, killing its driver `kills` times at random moments after some progress."""
    process = start(folder, "search", str(folder / "killed.yaml"))
    delays = random.Random()
    for _ in range(kills):
        before = checkpoints(folder)
        deadline = time.monotonic() + 180
        while checkpoints(folder) <= before and process.poll() is None:
            assert time.monotonic() < deadline, (folder / "log.txt").read_text()
            time.sleep(0.02)
        time.sleep(delays.uniform(0, 1.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process = start(folder, "resume", "killed", "--runs", str(folder / "runs"))
    assert process.wait(timeout=300) == 0, (folder / "log.txt").read_text()
    return ledger_of(folder)


def values(ledger: Ledger) -> dict[int, tuple[str, dict, list[float]]]:
    return {
        number: (
            record.status,
            record.params,
            [record.metrics.get(m) for m in ledger.objectives.metrics],
        )
        for number, record in ledger.records.items()
    }


def history_is_whole(folder: Path) -> None:
    """Every run trained each of its epochs once, in order."""
    for path in (folder / "runs" / "studies" / "killed" / "trials").glob("*/*/history.csv"):
        rows = path.read_text().splitlines()
        column = rows[0].split(",").index("epoch")
        epochs = [int(float(row.split(",")[column])) for row in rows[1:]]
        assert epochs == list(range(1, len(epochs) + 1))


@pytest.mark.slow
def test_one_at_a_time_killed_equals_never_killed(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    write_study(tmp_path / "whole", concurrent=1)
    write_study(tmp_path / "killed", concurrent=1)
    whole = run_to_the_end(tmp_path / "whole", kills=0)
    killed = run_to_the_end(tmp_path / "killed", kills=3)
    assert values(killed) == values(whole)
    assert killed.infeasible == whole.infeasible
    history_is_whole(tmp_path / "killed")


@pytest.mark.slow
def test_two_at_a_time_nothing_lost_and_nothing_counted_twice(tmp_path: Path) -> None:
    write_study(tmp_path, concurrent=2)
    ledger = run_to_the_end(tmp_path, kills=2)
    assert len(ledger.records) == 5
    assert not ledger.snapshot().with_status("running", "failed")
    history_is_whole(tmp_path)
    assert 2 <= len(StudyFolder(tmp_path / "runs", "killed").sessions()) <= 3


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_says_how_to_resume(tmp_path: Path) -> None:
    write_study(tmp_path, concurrent=1, trials=1000)  # more than it can train before Ctrl-C
    process = start(tmp_path, "search", str(tmp_path / "killed.yaml"))
    while checkpoints(tmp_path) < 1:
        assert process.poll() is None
        time.sleep(0.02)
    second = start(tmp_path, "resume", "killed", "--runs", str(tmp_path / "runs"))
    assert second.wait(timeout=60) == 2
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130
    log = (tmp_path / "log.txt").read_text()
    assert f"study 'killed' is being run by process {process.pid}" in log
    assert "resume with: slb-autotune resume killed" in log
    assert "Traceback" not in log
    wanted = len(ledger_of(tmp_path).records) + 1
    again = ["resume", "killed", "--runs", str(tmp_path / "runs"), "--trials", str(wanted)]
    assert start(tmp_path, *again).wait(300) == 0
    assert len(ledger_of(tmp_path).records) == wanted
