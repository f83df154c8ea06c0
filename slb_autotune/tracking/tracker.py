"""The thread that sends a study to MLflow while it runs."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slb_autotune.tracking.entries import StudyEntry, TrialEntry
from slb_autotune.tracking.store import (
    configure_environment,
    is_unavailable,
    public_address,
    tracking_uri,
)
from slb_autotune.tracking.writer import Writer

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
LONGEST_PAUSE = 30.0


class Tracker:
    """Sends a study to MLflow in a thread of its own; no method but `close` waits for MLflow.

    The first `submit` of a session gives all trials, later ones those that changed. The epochs of
    running trials are read from their folders.
    """

    def __init__(self, uri: str | None, runs_folder: Path, study: str, study_folder: Path) -> None:
        self._uri = tracking_uri(uri, runs_folder)
        self._writer = Writer(self._uri, runs_folder, study, study_folder)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._deadline = math.inf
        self._study: StudyEntry | None = None
        self._waiting: dict[int, TrialEntry] = {}
        self._running: dict[int, TrialEntry] = {}
        self._refused: dict[int, TrialEntry] = {}
        self._files: list[tuple[Path, str]] = []
        self._warned: set[str] = set()
        self._unavailable = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)

    @property
    def run_ids(self) -> Mapping[int, str]:
        """Trial -> its run, as far as they are known."""
        return self._writer.run_ids

    @property
    def parent_id(self) -> str | None:
        """The study's own run, once it is known."""
        return self._writer.state.parent or None

    def start(self) -> None:
        """Begin to write."""
        configure_environment()
        self._thread.start()

    def submit(self, study: StudyEntry, trials: Sequence[TrialEntry]) -> None:
        """Hand over what changed; the newest entry of a trial wins."""
        with self._lock:
            self._study = study
            self._waiting.update((entry.number, entry) for entry in trials)

    def attach(self, path: Path, where: str) -> None:
        """Give the study's run a file, in the artifact folder `where`."""
        with self._lock:
            self._files.append((path.absolute(), where))

    def close(self, timeout: float) -> int:
        """Send what is left; the number of trials that could not be sent in time."""
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._abandoned = self._thread.is_alive()
        with self._lock:
            return len(self._waiting)

    # -- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        pause = 0.0
        while True:
            closing = self._closing.is_set()
            answered = self._flush()
            if closing and (answered or self._is_overdue()):
                return
            if answered:
                pause = 0.0
                self._wake.wait(FLUSH_SECONDS)
                self._wake.clear()
            else:
                pause = min(max(1.0, 2 * pause), LONGEST_PAUSE)
                self._back_off(pause)

    def _is_overdue(self) -> bool:
        return time.monotonic() >= self._deadline

    def _back_off(self, pause: float) -> None:
        """Leave an unavailable server alone; once we are closing, only for a moment."""
        if self._closing.wait(0 if self._closing.is_set() else pause):
            time.sleep(max(0.0, min(0.5, self._deadline - time.monotonic())))

    def _flush(self) -> bool:
        """Send what waits; whether MLflow answered."""
        with self._lock:
            study, files, self._files = self._study, self._files, []
            trials = {**self._running, **self._waiting}
        if files:
            self._writer.state.files += [[str(path), where] for path, where in files]
            self._save(force=True)
        try:
            if study is not None:
                self._writer.connect(study)
                self._send_trials(trials)
                self._writer.send_study(study)
        except Exception as error:  # whatever it is, training continues
            self._on_error(error)
            return False
        finally:
            self._save()
        self._on_reconnect()
        return True

    def _send_trials(self, trials: Mapping[int, TrialEntry]) -> None:
        """Send each trial; one that is refused is sent again when it changed, or at the end."""
        for number, entry in sorted(trials.items()):
            if self._is_overdue():
                return
            if self._refused.get(number) is entry and not self._closing.is_set():
                continue
            try:
                self._writer.send_trial(entry)
            except Exception as error:
                if is_unavailable(error):
                    raise
                self._refused[number] = entry
                self._warn_once(f"trial {number} cannot be recorded: {self._describe(error)}")
            else:
                self._on_sent(entry)
                self._save()

    def _on_sent(self, entry: TrialEntry) -> None:
        """A running trial is looked at again, unless a newer entry of it waits."""
        with self._lock:
            if self._waiting.get(entry.number) is entry:
                del self._waiting[entry.number]
            if entry.is_running:
                self._running[entry.number] = entry
            else:
                self._running.pop(entry.number, None)

    def _save(self, *, force: bool = False) -> None:
        if self._abandoned:  # nobody waits for this thread any more: another tracker may write
            return
        try:
            self._writer.save(force=force or (self._closing.is_set() and not self._waiting))
        except OSError as error:
            self._warn_once(f"tracking.json cannot be written: {self._describe(error)}")

    def _on_error(self, error: Exception) -> None:
        if not self._unavailable:
            self._unavailable = True
            log.warning(
                "MLflow at %s is unavailable; results wait in the study's folder and are sent "
                "later (%s)",
                public_address(self._uri),
                self._describe(error),
            )

    def _on_reconnect(self) -> None:
        if self._unavailable:
            self._unavailable = False
            log.info("MLflow at %s is available again", public_address(self._uri))

    def _warn_once(self, message: str) -> None:
        """Warn once of the same problem, whichever trial has it."""
        kind = re.sub(r"[0-9a-f]{32}|\d+", "#", message)
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning(message)

    def _describe(self, error: Exception) -> str:
        text = (str(error).splitlines() or [""])[0].replace(self._uri, public_address(self._uri))
        return f"{type(error).__name__}: {text[:200]}"
