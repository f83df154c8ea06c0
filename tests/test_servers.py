"""The interfaces: on loopback, on a free port, and gone after Ctrl-C."""

import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from slb_autotune.errors import InputError
from slb_autotune.search.folder import StudyFolder
from slb_autotune.servers import HOST, dashboard_command, free_port, mlflow_command


def test_servers_listen_on_this_machine_alone(tmp_path: Path) -> None:
    command = mlflow_command("sqlite:///x.db", 1234)
    assert command[command.index("--host") + 1] == HOST == "127.0.0.1"
    assert free_port() > 1023
    pytest.importorskip("optuna_dashboard")
    with pytest.raises(InputError, match="no study"):
        dashboard_command(StudyFolder(tmp_path, "nothing"), 1234)


@pytest.mark.slow
def test_mlflow_answers_and_is_gone_after_ctrl_c(tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "slb_autotune", "ui", "--runs", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert started.stdout is not None
        url = re.search(r"http://127\.0\.0\.1:\d+", started.stdout.readline())
        assert url is not None
        assert answers(url[0], 120)
        started.send_signal(signal.SIGINT)
        assert started.wait(60) == 0
        assert not answers(url[0], 0)
    finally:
        started.kill()


def answers(url: str, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            if time.monotonic() > end:
                return False
            time.sleep(0.5)
