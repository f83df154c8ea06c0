"""A study's folder and its Optuna storage: configuration, lock, sessions, journal or database."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from slb_autotune.config.files import write_atomically
from slb_autotune.config.study import StudyConfig
from slb_autotune.errors import ConfigError, InputError
from slb_autotune.search.journal import DriverJournal
from slb_autotune.search.ledger import Ledger
from slb_autotune.search.records import StudySnapshot, find_study, study_folder


class StudyFolder:
    """The files of one study."""

    def __init__(self, runs: Path, name: str) -> None:
        self.path = study_folder(runs, name)
        self.runs = runs
        self.config_path = self.path / "study.yaml"
        self.sessions_path = self.path / "sessions.json"
        self.journal_path = self.path / "optuna.journal"

    def config(self) -> StudyConfig:
        """The study as it was last run."""
        return StudyConfig.from_file(find_study(self.runs, self.path.name) / "study.yaml")

    def sessions(self) -> list[dict[str, Any]]:
        """Start, seconds and version of each session; empty before the first."""
        if not self.sessions_path.exists():
            return []
        sessions: list[dict[str, Any]] = json.loads(self.sessions_path.read_text())
        return sessions

    def save_sessions(self, sessions: list[dict[str, Any]]) -> None:
        """Write the sessions."""
        write_atomically(self.sessions_path, json.dumps(sessions, indent=1).encode())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the study; the system lets go of it when the process ends, however it ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise InputError(
                    f"study {self.path.name!r} is being run by {holder}",
                    "wait for it to end, stop it, or give this study another name.",
                ) from None
            file.seek(0)
            file.truncate()
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield


def open_storage(config: StudyConfig, files: StudyFolder, *, writes: bool) -> BaseStorage:
    """The Optuna storage of a study: a database, or a journal file in its folder."""
    if config.storage.optuna is not None:
        try:
            return RDBStorage(config.storage.optuna)
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"storage.optuna cannot be opened: {reason}",
                "check the address, and that the database's driver is installed.",
            ) from error
    path = files.journal_path
    return JournalStorage(DriverJournal(path) if writes else JournalFileBackend(str(path)))


def blank_ledger(config: StudyConfig) -> Ledger:
    """The ledger of a study in memory, which writes nothing."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, directions=config.goals().directions)
    return Ledger(config, study, storage, Path(config.storage.folder))


def open_ledger(config: StudyConfig, files: StudyFolder) -> Ledger:
    """The ledger of a study, new or as it was left."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = open_storage(config, files, writes=True)
    study = optuna.create_study(
        storage=storage,
        study_name=config.name,
        directions=config.goals().directions,
        load_if_exists=True,
    )
    names = list(config.goals().metrics)
    if study.metric_names != names:  # what dashboards call the objectives
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(names)
    return Ledger(config, study, storage, files.path)


def read_ledger(config: StudyConfig, files: StudyFolder) -> Ledger:
    """The ledger of a study that another process may be running: nothing in it is changed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if config.storage.optuna is None and not files.journal_path.exists():
        raise InputError(
            f"study {config.name!r} has no journal", "run it first, or copy it whole."
        )
    storage = open_storage(config, files, writes=False)
    try:
        study = optuna.load_study(study_name=config.name, storage=storage)
    except KeyError:
        raise InputError(f"study {config.name!r} has not begun", "run it first.") from None
    return Ledger(config, study, storage, files.path, read_only=True)


def read_study(runs: Path, name: str) -> StudySnapshot:
    """A study as its Optuna storage has it, whether it runs or not."""
    files = StudyFolder(runs, name)
    return read_ledger(files.config(), files).snapshot(files.sessions())
