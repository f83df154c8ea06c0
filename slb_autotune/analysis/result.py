"""StudyResult: what a study found, as plain tables in its folder.

Loading one needs neither Ray nor Optuna nor torch, and takes no lock, so a report can be written
on another machine from the copied folder. All rows are built here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from slb_autotune.analysis.tables import (
    EPOCH_COLUMNS,
    RUN_COLUMNS,
    config_columns,
    read_epochs,
    read_runs,
    typed,
    write,
)
from slb_autotune.config.files import write_atomically
from slb_autotune.config.metrics import METRICS, Objectives
from slb_autotune.config.study import Constraint, StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import DataError, InputError
from slb_autotune.pareto import hypervolume_share
from slb_autotune.search.early_stopping import phase_folder, phases
from slb_autotune.search.records import (
    FINISHED,
    Record,
    StudySnapshot,
    find_study,
    meets,
    trial_folder,
)
from slb_autotune.training.history import staged_epochs

FORMAT = 1
FOLDER = "result"  # in the folder of a study


@dataclass(frozen=True, eq=False)
class StudyResult:
    """A study: its configuration, its trials and epochs, its front and its hypervolume.

    `trials` has the columns RUN_COLUMNS and marks the members of the front; `epochs` has
    EPOCH_COLUMNS. `reference` is the reference point of hypervolume, in the order of the
    objectives, and empty while it is not known. `folder` is the study's own, None for exported
    tables.
    """

    config: StudyConfig
    trials: pd.DataFrame
    epochs: pd.DataFrame
    reference: tuple[float, ...] = ()
    hypervolume: float = 0.0
    infeasible: int = 0
    sessions: tuple[dict[str, Any], ...] = ()
    folder: Path | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The study's name."""
        return self.config.name

    @cached_property
    def objectives(self) -> Objectives:
        """The objectives, in order."""
        return self.config.goals()

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints."""
        return tuple(self.config.parsed_constraints)

    @cached_property
    def base(self) -> TrialConfig:
        """The fixed part of every trial."""
        return self.config.base()

    @cached_property
    def results(self) -> pd.DataFrame:
        """The trials with a result that meets all constraints."""
        finished = self.with_status(*FINISHED)
        if not self.constraints or finished.empty:
            return finished
        names = [constraint.metric for constraint in self.constraints]
        rows = finished[names].astype("float64").to_dict("records")
        return finished[[meets(row, self.constraints) for row in rows]]  # type: ignore[arg-type]

    @cached_property
    def front(self) -> pd.DataFrame:
        """The members of the front, ordered by the last objective."""
        members = self.trials[self.trials["on_front"].fillna(False).astype(bool)]
        order = [*reversed(self.objectives.metrics), "trial"]
        return members.sort_values(order, kind="stable")

    def with_status(self, *statuses: str) -> pd.DataFrame:
        """The trials of these statuses."""
        return self.trials[self.trials["status"].isin(statuses)]

    def best(
        self, rows: pd.DataFrame | None = None, metric: str | None = None
    ) -> pd.Series[Any] | None:
        """The best of these trials (or of all results) in a metric, by default the quality."""
        chosen = self.results if rows is None else rows
        name = metric or self.objectives.quality or self.objectives.metrics[0]
        known = chosen[chosen[name].notna()]
        costs = known[name].astype("float64").to_numpy() * self.objectives.sign(name)
        return None if known.empty else known.iloc[int(costs.argmin())]

    def hypervolume_of(self, rows: pd.DataFrame) -> float:
        """Hypervolume of some trials, against the study's reference point."""
        points = rows[list(self.objectives.metrics)].astype("float64").to_numpy()
        return hypervolume_share(points, self.reference, self.objectives) if len(points) else 0.0

    def trial(self, number: int) -> pd.Series[Any]:
        """One trial's row."""
        found = self.trials[self.trials["trial"] == number]
        if found.empty:
            known = ", ".join(map(str, self.trials["trial"].head(20)))
            raise InputError(f"study {self.name!r} has no trial {number}", f"it has {known}.")
        return found.iloc[0]

    def config_of(self, trial: int) -> TrialConfig:
        """The configuration of a trial."""
        return self.base.updated(json.loads(self.trial(trial)["config"] or "{}"))

    def run_folder(self, trial: int) -> Path | None:
        """Where a trial's run of the full budget is; None where only tables are left."""
        path = None if self.folder is None else trial_folder(self.folder, trial) / "full"
        return path if path is not None and path.exists() else None

    def provenance(self) -> dict[str, list[str]]:
        """What the trials ran on, as their workers recorded it: each column's values."""
        names = ("version", "torch", "machine", "device", "threads", "precision")
        return {
            name: [str(v) for v in self.trials[name].dropna().unique() if str(v)] for name in names
        }


# -- building ----------------------------------------------------------------------------------


def study_result(study: StudySnapshot) -> StudyResult:
    """A study as tables; the epochs are read from the trials' folders."""
    return StudyResult(
        config=study.config,
        trials=run_table(study),
        epochs=epoch_table(study),
        reference=study.reference,
        hypervolume=study.hypervolume(),
        infeasible=study.infeasible,
        sessions=study.sessions,
        folder=study.folder,
    )


def run_table(study: StudySnapshot) -> pd.DataFrame:
    """One row per trial."""
    front = {record.number for record in study.front()}
    fixed = study.config.base().flat()
    records = sorted(study.records.values(), key=lambda record: record.number)
    rows = [run_row(study.config.name, fixed, r, r.number in front) for r in records]
    return typed(rows, RUN_COLUMNS)


def run_row(study: str, fixed: dict[str, Any], record: Record, on_front: bool) -> dict[str, Any]:
    """The row of one trial; `fixed` is the flat fixed part of the study's trials."""
    config = record.config
    changes = {k: v for k, v in config.flat().items() if fixed.get(k, ...) != v}
    metrics = {**record.costs, **record.metrics}
    return {
        "study": study,
        "trial": record.number,
        "digest": record.digest,
        "status": record.status,
        "reason": record.reason,
        "source": record.source,
        "on_front": on_front,
        **config_columns(config),
        "bits": json.dumps(record.bits) if record.bits else "",
        "train_images": metrics.get("train_images"),
        **{name: metrics[name] for name in METRICS if name in metrics},
        "epochs_spent": record.epochs,
        "attempt": record.attempt,
        "started": record.started or None,
        "ended": record.ended or None,
        "params": json.dumps(record.params, sort_keys=True),
        "config": json.dumps(changes, sort_keys=True),
        **{name: record.ran_on.get(name) for name in ("version", "torch", "machine", "device")},
        **{name: record.ran_on.get(name) for name in ("threads", "precision")},
        "command": f"slb-autotune train {study}:{record.number}",
    }


def epoch_table(study: StudySnapshot) -> pd.DataFrame:
    """One row per epoch, of every rung."""
    records = sorted(study.records.values(), key=lambda record: record.number)
    rows = [
        {**row, "study": study.config.name, "trial": record.number}
        for record in records
        for row in epoch_rows(study, record)
    ]
    return typed(rows, EPOCH_COLUMNS)


def epoch_rows(study: StudySnapshot, record: Record) -> Iterator[dict[str, float]]:
    """The epochs of a trial in order; `rung` says to which rung each belongs."""
    return staged_epochs(study.trial_folder(record.number), stages_of(study.config, record))


def stages_of(study: StudyConfig, record: Record) -> tuple[tuple[str, int], ...]:
    """The phases of a trial in order: (folder, last epoch) of each."""
    epochs = record.config.epochs
    return tuple(
        (phase_folder(Path(), phase, epochs).name, phase.until)
        for phase in phases(study.early_stopping, epochs)
    )


# -- files -------------------------------------------------------------------------------------


def save_result(result: StudyResult, folder: Path, prefix: str = "") -> list[Path]:
    """Write `study.json`, `runs.csv` and `epochs.csv`; their paths.

    What is of one machine alone, addresses of storages and the data's root, is left out.
    """
    paths = [folder / f"{prefix}{name}" for name in ("study.json", "runs.csv", "epochs.csv")]
    config = result.config.to_mapping()
    config.pop("storage", None)
    content = {
        "format": FORMAT,
        "study": config
        | {"trial": _without_root(config.get("trial", {}))}
        | {"points": [_without_root(point) for point in config.get("points", ())]},
        "reference": list(result.reference),
        "hypervolume": result.hypervolume,
        "infeasible": result.infeasible,
        "sessions": [{k: v for k, v in s.items() if k != "pid"} for s in result.sessions],
        "storage_bytes": _storage_bytes(result.folder),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write(result.trials, paths[1])
    write(result.epochs, paths[2])
    write_atomically(paths[0], (json.dumps(content, indent=1) + "\n").encode())
    return paths


def _without_root(trial: dict[str, Any]) -> dict[str, Any]:
    data = trial.get("data")
    kept = {k: v for k, v in trial.items() if k != "data.root"}
    return kept | ({"data": {**data, "root": None}} if isinstance(data, dict) else {})


def load_result(
    folder: Path, prefix: str = "", *, study_folder: Path | None = None
) -> StudyResult:
    """A result that was saved; `study_folder` is where its trials' folders are, if anywhere."""
    path = folder / f"{prefix}study.json"
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise ValueError(f"it has format {content['format']}, not {FORMAT}")
        config = StudyConfig.from_mapping(content["study"], str(path))
    except FileNotFoundError:
        raise DataError(f"there is no {path}", "export the study again.") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}", "export the study again.") from error
    return StudyResult(
        config=config,
        trials=read_runs(folder / f"{prefix}runs.csv"),
        epochs=read_epochs(folder / f"{prefix}epochs.csv"),
        reference=tuple(content["reference"]),
        hypervolume=content["hypervolume"],
        infeasible=content["infeasible"],
        sessions=tuple(content["sessions"]),
        folder=study_folder,
    )


def current_result(runs: Path, name: str) -> StudyResult:
    """A study's result: as saved where nothing was added since, else from Optuna's storage.

    Only the driver saves, while it holds the study: a reader might save what is outdated already.
    Where the storage is unavailable, as in a copy without it, what was saved last counts.
    """
    folder = find_study(runs, name)
    saved = folder / FOLDER
    if not _is_current(folder, saved):
        from slb_autotune.search.storage import read_study

        try:
            return study_result(read_study(runs, name))
        except InputError:
            if not (saved / "study.json").exists():
                raise
    config = StudyConfig.from_file(folder / "study.yaml")
    return replace(load_result(saved, study_folder=folder), config=config)


def _is_current(folder: Path, saved: Path) -> bool:
    """Whether the journal, which only grows, is as long as it was when the result was saved."""
    try:
        stored = json.loads((saved / "study.json").read_text())["storage_bytes"]
    except (OSError, KeyError, ValueError):
        return False
    return bool(stored == _storage_bytes(folder) and stored > 0)


def _storage_bytes(folder: Path | None) -> int:
    """The length of a study's journal; 0 where it has none."""
    path = None if folder is None else folder / "optuna.journal"
    return path.stat().st_size if path is not None and path.exists() else 0
