"""The interfaces of MLflow and Optuna, served to this machine alone."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import typer

from slb_autotune.errors import InputError
from slb_autotune.search.folder import StudyFolder
from slb_autotune.tracking import tracking_uri

HOST = "127.0.0.1"
PATIENCE = 10.0  # seconds that a server is given to end by itself


def serve(runs: Path, uri: str | None, port: int | None, study: str | None) -> None:
    """Run the servers until Ctrl-C, or until one of them ends."""
    servers = [mlflow_command(tracking_uri(uri, runs), port or free_port())]
    if study is not None:
        servers.append(dashboard_command(StudyFolder(runs, study), free_port()))
    for command in servers:
        typer.echo(f"{command[2]:<11}http://{HOST}:{command[command.index('--port') + 1]}")
    typer.echo("Ctrl-C ends.", err=True)
    run_until_interrupted(servers)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def mlflow_command(uri: str, port: int) -> list[str]:
    """MLflow's interface over a store."""
    store = ["--backend-store-uri", uri]
    return [sys.executable, "-m", "mlflow", "ui", *store, "--host", HOST, "--port", str(port)]


def dashboard_command(files: StudyFolder, port: int) -> list[str]:
    """optuna-dashboard over a study's storage."""
    if find_spec("optuna_dashboard") is None:
        raise InputError(
            "optuna-dashboard is not installed", "pip install 'slb-autotune[dashboard]'"
        )
    storage = files.config().storage.optuna or str(files.journal_path)
    where = [storage, "--host", HOST, "--port", str(port)]
    return [sys.executable, "-m", "optuna_dashboard", *where]


def run_until_interrupted(commands: Sequence[list[str]]) -> None:
    """Start all, wait, and leave none behind."""
    processes = [subprocess.Popen(command) for command in commands]  # noqa: S603
    try:
        while all(process.poll() is None for process in processes):
            time.sleep(0.2)
    except KeyboardInterrupt:
        pass
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
