"""Optuna's journal file, as the one driver that holds a study's lock writes it.

The lines are those of Optuna's own `JournalFileBackend`, which reads them too. That one opens the
file anew for every query and waits for the disk after every parameter of a trial, of which a
study of many layers has many. Here the driver keeps what it wrote in memory.
"""

from __future__ import annotations

import errno
import json
import os
from io import FileIO
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend


class DriverJournal(BaseJournalBackend):
    """A journal with a single writer.

    Every line is handed to the system at once, so a killed driver loses none. Only some lines are
    waited for (`_must_reach_disk`): a power cut may lose the last parameters and attributes of a
    trial whose status was not written yet, and which no worker has seen.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()
        self._logs: list[dict[str, Any]] = [json.loads(line) for line in _whole_lines(path)]
        self._first = 0  # the number of the first log that is kept

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        """The logs from this number on; earlier ones are not asked for again."""
        del self._logs[: log_number_from - self._first]
        self._first = log_number_from
        return list(self._logs)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write logs at the end of the file."""
        lines = [json.dumps(log, separators=(",", ":")) for log in logs]
        content = "".join(f"{line}\n" for line in lines).encode()
        with self._path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if _write(file, content) < len(content):
                # Half a line in the middle of the file would make all of it unreadable.
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            if any(map(_must_reach_disk, logs)):
                os.fsync(file.fileno())
        self._logs += map(json.loads, lines)


def _must_reach_disk(log: dict[str, Any]) -> bool:
    """A study and its attributes; of a trial its status, its attempt, its rungs and its end.

    Whatever was written before comes along. Judged by the fields of the line, which are the
    journal's file format.
    """
    names = log.get("user_attr", ())
    of_trial = any(n in ("status", "attempt") or n.startswith("rung/") for n in names)
    of_study = "study_name" in log or ("study_id" in log and "user_attr" in log)
    return of_trial or of_study or "datetime_complete" in log


def _write(file: FileIO, content: bytes) -> int:
    """The bytes that were written: fewer than all where the disk is full."""
    try:
        return file.write(content) or 0
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return 0
        raise


def _whole_lines(path: Path) -> list[bytes]:
    """The lines of the file, where a torn last one is cut off.

    A driver killed while it wrote leaves a line without an end; what it says never happened.
    """
    *lines, torn = path.read_bytes().split(b"\n")
    if torn:
        with path.open("r+b") as file:
            file.truncate(file.seek(0, os.SEEK_END) - len(torn))
    return lines
