"""The interfaces: on loopback, on a free port, and gone after Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from slb_autotune.cli.servers import HOST, dashboard_command, free_port, mlflow_command
from slb_autotune.errors import InputError
from slb_autotune.search.records import study_folder
from tests.builders import tiny_study
from tests.cli.helpers import played_study


def test_servers_listen_on_this_machine_alone(tmp_path: Path) -> None:
    command = mlflow_command("sqlite:///x.db", 1234)
    assert command[command.index("--host") + 1] == HOST == "127.0.0.1"
    assert free_port() > 1023
    pytest.importorskip("optuna_dashboard")
    with pytest.raises(InputError, match="no study"):
        dashboard_command(tmp_path, "nothing", 1234)


def test_a_databases_password_is_on_no_command_line(tmp_path: Path) -> None:
    pytest.importorskip("optuna_dashboard")
    config = tiny_study(storage={"optuna": "postgresql://me:secret@nowhere/studies"})
    folder = study_folder(tmp_path, "tiny")
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text(config.to_yaml())
    command = dashboard_command(tmp_path, "tiny", 1234)
    assert command[-3:] == [str(tmp_path), "tiny", "1234"]
    assert "secret" not in " ".join(command)


def test_the_dashboard_is_served_through_its_public_interface() -> None:
    dashboard = pytest.importorskip("optuna_dashboard")
    assert callable(dashboard.wsgi)


@pytest.mark.slow
@pytest.mark.parametrize("dashboard", [False, True])
def test_each_answers_and_is_gone_after_ctrl_c(tmp_path: Path, dashboard: bool) -> None:
    command = [sys.executable, "-m", "slb_autotune", "ui", "--runs", str(tmp_path)]
    if dashboard:
        pytest.importorskip("optuna_dashboard")
        played_study(tmp_path)
        command += ["--study", "tiny"]
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert started.stdout is not None
        lines = [started.stdout.readline() for _ in range(1 + dashboard)]
        assert [line.split()[0] for line in lines] == ["mlflow", "optuna"][: len(lines)]
        urls = [line.split()[1] for line in lines]
        assert all(url.startswith("http://127.0.0.1:") for url in urls)
        assert all(answer(url, 180) for url in urls)
        if dashboard:
            assert '"study_name": "tiny"' in answer(f"{urls[1]}/api/studies", 0)
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does
        assert started.wait(60) == 0
        assert not any(answer(url, 0) for url in urls)
    finally:
        started.kill()


ENDING = """
import sys
from slb_autotune.cli.servers import run_until_interrupted

stays = f"import os, time; open({sys.argv[1]!r}, 'w').write(str(os.getpid())); time.sleep(600)"
ends = f"import os, time\\nwhile not os.path.exists({sys.argv[1]!r}): time.sleep(0.1)"
run_until_interrupted(
    {name: [sys.executable, "-c", code] for name, code in (("first", stays), ("second", ends))}
)
"""


@pytest.mark.slow
def test_a_server_that_ends_by_itself_ends_the_others_and_is_named(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    command = [sys.executable, "-c", ENDING, str(note)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert "second ended by itself" in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def answer(url: str, seconds: float) -> str:
    """The page; nothing where there is none within that time."""
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                return str(reply.read().decode())
        except OSError:
            if time.monotonic() > end:
                return ""
            time.sleep(0.5)
