"""A study on a Ray cluster of two nodes, each with one CPU."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from slb_autotune.search.storage import StudyFolder, read_ledger
from tests.builders import TINY

BIN = Path(sys.executable).parent


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The address of a head with a second node beside it; both ask for a token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    token = tmp_path / "token"
    token.write_text("0" * 64)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    start = [str(BIN / "ray"), "start", "--block", "--num-cpus", "1", "--disable-usage-stats"]
    head = ["--head", "--port", address.split(":")[1], "--include-dashboard", "false"]
    nodes = []
    try:
        for role in (head, ["--address", address]):
            node = subprocess.Popen(
                [*start, *role], stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            nodes.append(node)
            assert node.stdout is not None
            while "Ray runtime started" not in (line := node.stdout.readline()):
                assert line, "Ray did not start"
        yield address
    finally:
        for node in reversed(nodes):
            os.killpg(node.pid, signal.SIGTERM)
            node.wait(timeout=60)
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
            os.environ.pop(name)


@pytest.mark.slow
def test_a_cluster_trains_the_trials(cluster: str, tmp_path: Path) -> None:
    study = {
        "name": "two_nodes",
        "trial": TINY,
        "space": {"T_e": {"log": [1, 1000]}},
        "budget": {"trials": 4},
        "warm_start": {"uniform": False, "paper": False},
        "resources": {"concurrent": 2},
        "storage": {"ray": cluster, "folder": str(tmp_path / "runs")},
    }
    path = tmp_path / "two_nodes.yaml"
    path.write_text(yaml.safe_dump(study))
    command = [sys.executable, "-m", "slb_autotune", "search", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    files = StudyFolder(tmp_path / "runs", "two_nodes")
    ledger = read_ledger(files.config(), files)
    assert len(ledger.snapshot().with_status("done")) == 4
