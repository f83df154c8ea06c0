"""The interfaces of MLflow and Optuna, served to this machine alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import typer

from slb_autotune.cli.output import labelled, print_note
from slb_autotune.errors import InputError, SlbError
from slb_autotune.search.records import find_study
from slb_autotune.tracking.store import tracking_uri

HOST = "127.0.0.1"
PATIENCE = 10.0  # seconds that a server is given to end by itself


def serve(runs: Path, uri: str | None, port: int | None, study: str | None) -> None:
    """Run the servers until Ctrl-C, or until one of them ends."""
    ports = {"mlflow": port or free_port()}
    commands = {"mlflow": mlflow_command(tracking_uri(uri, runs), ports["mlflow"])}
    if study is not None:
        ports["optuna"] = free_port()
        commands["optuna"] = dashboard_command(runs, study, ports["optuna"])
    for name, number in ports.items():
        typer.echo(labelled(name, f"http://{HOST}:{number}"))
    print_note("Ctrl-C ends.")
    run_until_interrupted(commands)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def mlflow_command(uri: str, port: int) -> list[str]:
    """MLflow's interface over a store; one person needs one worker, which starts much sooner."""
    where = ["--backend-store-uri", uri, "--host", HOST, "--port", str(port)]
    return [sys.executable, "-m", "mlflow", "ui", *where, "--workers", "1"]


def dashboard_command(runs: Path, study: str, port: int) -> list[str]:
    """optuna-dashboard over a study's storage."""
    if find_spec("optuna_dashboard") is None:
        raise InputError(
            "optuna-dashboard is not installed", "pip install 'slb-autotune[dashboard]'"
        )
    find_study(runs, study)
    module = "slb_autotune.cli.dashboard"
    return [sys.executable, "-m", module, str(runs), study, str(port)]


def run_until_interrupted(commands: Mapping[str, Sequence[str]]) -> None:
    """Start all servers, wait, and leave none behind.

    Each has a session of its own: Ctrl-C reaches this process alone, which then ends them.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not where nohup ignores it
            signal.signal(number, signal.default_int_handler)
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
    processes = {
        name: subprocess.Popen(command, start_new_session=True, env=environment)  # noqa: S603
        for name, command in commands.items()
    }
    try:
        while all(process.poll() is None for process in processes.values()):
            time.sleep(0.2)
        ended = next(name for name, process in processes.items() if process.poll() is not None)
        raise SlbError(f"{ended} ended by itself", "its last lines say why.")
    except KeyboardInterrupt:
        pass
    finally:
        _end(list(processes.values()))


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask each server and its workers to end; whoever has not in time is killed."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
