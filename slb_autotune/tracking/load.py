"""The trials and epochs of studies as tables, from their folders or from an MLflow store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from slb_autotune.analysis.result import StudyResult, current_result
from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS, typed
from slb_autotune.errors import InputError, SlbError, nearest
from slb_autotune.search.records import FINISHED
from slb_autotune.tracking.state import logged_run_ids
from slb_autotune.tracking.store import (
    PARENT,
    configure_environment,
    find_experiments,
    find_runs,
    joined_tags,
    make_client,
    public_address,
)
from slb_autotune.training.history import read_history

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def load_runs(
    study: str | None = None, uri: str | None = None, runs_folder: Path = Path("slb-runs")
) -> pd.DataFrame:
    """One row per trial, of one study or of all (columns: analysis.tables.RUN_COLUMNS).

    Read from the studies in `runs_folder`, or, where `uri` is given, from that MLflow store,
    such as a cluster's server. Of several studies of one name in a store, the latest is read.
    """
    if uri is None:
        return _stacked([_with_run_ids(r) for r in _results(study, runs_folder)], RUN_COLUMNS)
    with _reading(uri) as client:
        return typed([_run_row(run) for run in _trial_runs(client, study)], RUN_COLUMNS)


def load_epochs(
    study: str | None = None, uri: str | None = None, runs_folder: Path = Path("slb-runs")
) -> pd.DataFrame:
    """One row per epoch, of every rung (columns: analysis.tables.EPOCH_COLUMNS).

    Read from where `load_runs` reads.
    """
    if uri is None:
        return _stacked([r.epochs for r in _results(study, runs_folder)], EPOCH_COLUMNS)
    with _reading(uri) as client:
        runs = _trial_runs(client, study)
        return typed([row for run in runs for row in _epoch_rows(client, run)], EPOCH_COLUMNS)


# -- from folders ------------------------------------------------------------------------------


def _results(study: str | None, runs_folder: Path) -> list[StudyResult]:
    folders = sorted(path.parent for path in (runs_folder / "studies").glob("*/study.yaml"))
    if not folders:
        raise InputError(
            f"nothing is recorded in {runs_folder}", "run a study first, or name its run folder."
        )
    if study is not None:
        return [current_result(runs_folder, study)]
    # One without a session was killed before it began, and has nothing to read.
    begun = [folder.name for folder in folders if (folder / "sessions.json").exists()]
    return [current_result(runs_folder, name) for name in begun]


def _with_run_ids(result: StudyResult) -> pd.DataFrame:
    ids = {} if result.folder is None else logged_run_ids(result.folder)
    found = [ids.get(int(number), "") for number in result.trials["trial"]]
    return result.trials.assign(run_id=pd.Series(found, result.trials.index, dtype="str"))


def _stacked(frames: list[pd.DataFrame], columns: dict[str, str]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else typed([], columns)


# -- from MLflow -------------------------------------------------------------------------------


@contextmanager
def _reading(uri: str) -> Iterator[MlflowClient]:
    """A client of the store; whatever fails is one sentence."""
    configure_environment()
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        raise InputError(
            f"nothing is recorded in {public_address(uri)}",
            "run a study first, or check the address.",
        )
    try:
        yield make_client(uri)
    except SlbError:
        raise
    except Exception as error:
        raise SlbError(
            f"MLflow at {public_address(uri)} cannot be read ({type(error).__name__})",
            "check that the server runs, or the address.",
        ) from error


def _trial_runs(client: MlflowClient, study: str | None) -> Iterator[Run]:
    experiments = {e.name: e.experiment_id for e in find_experiments(client)}
    if study is not None and study not in experiments:
        known = [name for name in experiments if name != "Default"]
        raise InputError(f"MLflow has no study {study!r}", nearest(study, known))
    for name, identity in sorted(experiments.items()):
        if study not in (None, name):
            continue
        parents = list(find_runs(client, identity, "tags.kind = 'study'"))
        if parents:
            parent = max(parents, key=lambda run: run.info.start_time).info.run_id
            runs = find_runs(client, identity, f"tags.`{PARENT}` = '{parent}'")
            yield from sorted(runs, key=lambda run: int(run.data.tags["trial"]))


def _run_row(run: Run) -> dict[str, Any]:
    tags, metrics = joined_tags(run.data.tags), run.data.metrics
    finished = tags["status"] in FINISHED
    # A trial that did not finish has no result: its metrics are those of its last epoch.
    numbers = {n: v for n, v in metrics.items() if finished or n not in EPOCH_COLUMNS}
    # Settings come last: an epoch's learning rate is a metric, the run's own a setting.
    values = {**numbers, **run.data.params, **tags, "run_id": run.info.run_id}
    values["on_front"] = tags.get("on_front") == "true"
    columns = {name: values.get(name) for name in RUN_COLUMNS}
    return {name: _parsed(value, RUN_COLUMNS[name]) for name, value in columns.items()}


def _parsed(value: Any, dtype: str) -> Any:
    if value is None or dtype in ("str", "boolean"):
        return value
    return int(value) if dtype == "Int64" else float(value)


def _epoch_rows(client: MlflowClient, run: Run) -> list[dict[str, Any]]:
    """From the history of an ended trial, or from the metrics of one that still runs."""
    tags = run.data.tags
    if run.info.status == "RUNNING":
        rows = _metric_rows(client, run)
    elif "epoch" in run.data.metrics and tags["status"] != "reused":
        with tempfile.TemporaryDirectory() as name:
            path = client.download_artifacts(run.info.run_id, "history.csv", name)
            rows = read_history(Path(path))
    else:
        rows = []
    return [{**row, "study": tags["study"], "trial": int(tags["trial"])} for row in rows]


def _metric_rows(client: MlflowClient, run: Run) -> list[dict[str, float]]:
    rows: dict[int, dict[str, float]] = {}
    for key in run.data.metrics:
        name = "seconds" if key == "epoch_seconds" else key
        if name not in EPOCH_COLUMNS:
            continue
        for metric in client.get_metric_history(run.info.run_id, key):
            rows.setdefault(metric.step, {}).setdefault(name, metric.value)
    return [rows[step] for step in sorted(rows)]
