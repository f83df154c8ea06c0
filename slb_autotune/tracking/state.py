"""`tracking.json` in a study's folder: what MLflow was sent, so that nothing is sent twice."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from slb_autotune.config.files import write_atomically

STATE_FILE = "tracking.json"
FORMAT = 2


@dataclass
class TrialState:
    """A trial's run; `logged` is the digest of the entry that was logged in full."""

    run_id: str
    start: int  # milliseconds, as MLflow has it
    logged: str = ""
    on_front: bool = False
    packed: bool = False


@dataclass
class StudyState:
    """What the study's own run has: its tags, and up to which ended trial the rest goes."""

    tags: dict[str, str] = field(default_factory=dict)
    hypervolume: int = 0
    fronts: int = 0
    file: str = ""  # digest of study.yaml


@dataclass
class State:
    """All of it, for one store. `files` are those that are still to be sent: (path, where)."""

    store: str
    experiment: str = ""
    parent: str = ""
    study: StudyState = field(default_factory=StudyState)
    trials: dict[int, TrialState] = field(default_factory=dict)
    files: list[list[str]] = field(default_factory=list)
    format: int = FORMAT

    @classmethod
    def read(cls, folder: Path, store: str) -> State:
        """As it was left; blank where there is none, or it is of another store or format.

        Blank is always safe: what MLflow has is found there, and sent again without a change.
        """
        try:
            content = json.loads((folder / STATE_FILE).read_text())
            if (content["store"], content.get("format")) != (store, FORMAT):
                return cls(store, files=content["files"])
            trials = {int(n): TrialState(**trial) for n, trial in content["trials"].items()}
            study = StudyState(**content["study"])
            return cls(**{**content, "study": study, "trials": trials})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return cls(store)

    def text(self) -> str:
        """As it is written."""
        return json.dumps(asdict(self))

    def forget_runs(self) -> None:
        """Nothing is known of what MLflow has."""
        self.study, self.trials = StudyState(), {}


def write_state(folder: Path, text: str) -> None:
    """Replace `tracking.json`."""
    write_atomically(folder / STATE_FILE, text.encode())


def logged_run_ids(folder: Path) -> dict[int, str]:
    """Trial -> its run in the store that the study was last recorded in."""
    try:
        content = json.loads((folder / STATE_FILE).read_text())
        return {int(n): str(trial["run_id"]) for n, trial in content["trials"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
