"""What a study keeps of a trial in Optuna's storage: as attributes, read back as a record."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import InputError
from slb_autotune.search.records import Record


def set_constraint(trial: optuna.Trial, name: str, violation: float) -> None:
    """Set a constraint once: Optuna warns of what was set before a kill."""
    if name not in trial.constraints:
        trial.set_constraint(name, violation)


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a row, without text and without what Ray adds (`config/number`, ...)."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and name not in _NOT_METRICS
        and "/" not in name
    }


_NOT_METRICS = frozenset(
    {"training_iteration", "timestamp", "time_total_s", "time_this_iter_s", "time_since_restore"}
    | {"iterations_since_restore", "pid", "done", "rung", "trial_epochs"}
)


def record_of(trial: FrozenTrial) -> Record:
    """A trial as its attributes have it."""
    attributes = trial.user_attrs
    rungs = {
        int(name.partition("/")[2]): value
        for name, value in attributes.items()
        if name.startswith("rung/")
    }
    if "known" not in attributes:
        raise InputError(
            "the study was run by an earlier version, which stored trials in another way",
            "read it with that version, or run it again under another name.",
        )
    known = attributes["known"]
    config = TrialConfig.from_mapping(known["config"])
    return Record(
        number=trial.number,
        status=attributes["status"],
        config=config,
        digest=config.digest,
        params=dict(trial.params),
        costs=known["costs"],
        bits=known["bits"],
        metrics=attributes.get("metrics", {}),
        rungs=rungs,
        ran_on=attributes.get("ran_on", {}),
        reason=attributes.get("reason", ""),
        epochs=attributes.get("epochs", 0),
        attempt=attributes.get("attempt", 1),
        source=attributes.get("source", "sampler"),
        reused_from=attributes.get("reused_from"),
        started=_seconds(trial.datetime_start),
        ended=_seconds(trial.datetime_complete),
    )


def _seconds(moment: datetime | None) -> float:
    return 0.0 if moment is None else moment.timestamp()
