"""What the tests of the command line share: how a command ends, and studies that train nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slb_autotune.config.study import StudyConfig
from slb_autotune.search.ledger import Ledger
from slb_autotune.search.records import Outcome, StudyListener, StudySnapshot
from slb_autotune.search.storage import StudyFolder, open_ledger
from tests.builders import play, tiny_study

SESSION = {"version": "1", "started": 1.0e9, "seconds": 2.0}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


def process(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "slb_autotune", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(started: subprocess.Popen[str]) -> Ended:
    try:
        out, err = started.communicate(timeout=200)
    finally:
        started.kill()
    return Ended(started.returncode, out, err)


def complaint(ended: Ended) -> tuple[str, str]:
    """The message and the hint of a command that refused its input."""
    assert ended.code == 2
    assert ended.out == ""
    found = re.fullmatch(r"error: ([^\n]+)\n(?:hint: ([^\n]+)\n)?", ended.err)
    assert found is not None, ended.err
    return found[1], found[2] or ""


def opened(config: StudyConfig) -> Ledger:
    """The ledger of a study in its folder, as the driver opens it."""
    files = StudyFolder(Path(config.storage.folder), config.name)
    files.path.mkdir(parents=True, exist_ok=True)
    files.config_path.write_text(config.to_yaml())
    return open_ledger(config, files)


def played_study(runs: Path, trials: int = 3, **changes: Any) -> StudySnapshot:
    """A study in a run folder whose trials have ended without any training."""
    storage = {"folder": str(runs), "mlflow": "off"}
    ledger = opened(tiny_study(budget={"trials": trials}, storage=storage, **changes))
    play(ledger)
    return ledger.snapshot([dict(SESSION)])


def playing_driver(status: str = "done") -> Callable[..., Outcome]:
    """Stands in for `run_study`: no Ray, and no training."""

    def run_study(
        config: StudyConfig,
        listeners: Sequence[StudyListener] = (),
        *,
        resume: bool = False,
        retry_failed: bool = False,
    ) -> Outcome:
        ledger = opened(config)
        if retry_failed:
            ledger.retry_failed()
        sessions = [dict(SESSION)]
        for listener in listeners:
            listener.on_start(ledger.snapshot(sessions))
        play(ledger)
        for listener in listeners:
            listener.on_change(ledger.snapshot(sessions))
        outcome = Outcome(ledger.snapshot(sessions), status, 2.0)
        for listener in listeners:
            listener.on_end(outcome)
        return outcome

    return run_study
