"""What MLflow was told of studies, read back as tables (the schema is in run_table.py)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS, typed
from slb_autotune.errors import InputError, SlbError, nearest
from slb_autotune.tracking.store import (
    PARENT,
    find_experiments,
    find_runs,
    joined_tags,
    make_client,
    place_of,
    settle_environment,
    tracking_uri,
)
from slb_autotune.training.history import read_history

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def load_runs(
    study: str | None = None, uri: str | None = None, runs_folder: Path = Path("slb-runs")
) -> pd.DataFrame:
    """A row a trial that MLflow knows, of one study or of all (columns: run_table.RUN_COLUMNS).

    Of several studies of one name the one that began last is taken.
    """
    _, runs = _recorded(study, uri, runs_folder)
    return typed([_run_row(run) for run in runs], RUN_COLUMNS)


def load_epochs(
    study: str | None = None, uri: str | None = None, runs_folder: Path = Path("slb-runs")
) -> pd.DataFrame:
    """A row an epoch that MLflow knows, of every rung (columns: run_table.EPOCH_COLUMNS)."""
    client, runs = _recorded(study, uri, runs_folder)
    rows = [row for run in runs for row in _epoch_rows(client, run)]
    return typed(rows, EPOCH_COLUMNS)


def _recorded(
    study: str | None, uri: str | None, runs_folder: Path
) -> tuple[MlflowClient, list[Run]]:
    settle_environment()
    address = tracking_uri(uri, runs_folder)
    database = Path(address.removeprefix("sqlite:///"))
    if address.startswith("sqlite:///") and not database.exists():
        raise InputError(
            f"nothing is recorded in {runs_folder}", "run a study first, or name its run folder."
        )
    try:
        client = make_client(address)
        return client, list(_trial_runs(client, study))
    except SlbError:
        raise
    except Exception as error:
        raise SlbError(
            f"MLflow at {place_of(address)} cannot be read ({type(error).__name__})",
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
    finished = tags["status"] in ("done", "reused")
    numbers = {n: v for n, v in metrics.items() if finished or n not in EPOCH_COLUMNS}
    # Settings come last: an epoch's learning rate is a metric, the run's own a setting.
    values = {**numbers, **run.data.params, **tags, "run_id": run.info.run_id}
    values["on_front"] = tags.get("on_front") == "true"
    columns = {name: values.get(name) for name in RUN_COLUMNS}
    return {name: _parsed(value, RUN_COLUMNS[name]) for name, value in columns.items()}


def _parsed(value: Any, dtype: str) -> Any:
    if value is None or dtype in ("str", "boolean"):
        return value
    return int(float(value)) if dtype == "Int64" else float(value)


def _epoch_rows(client: MlflowClient, run: Run) -> list[dict[str, Any]]:
    """From the history of an ended trial, or from the metrics of one that still runs."""
    marks = {"study": run.data.tags["study"], "trial": int(run.data.tags["trial"])}
    if run.info.status == "RUNNING":
        rows = _metric_rows(client, run)
    elif "epoch" in run.data.metrics:
        with tempfile.TemporaryDirectory() as name:
            path = client.download_artifacts(run.info.run_id, "history.csv", name)
            rows = read_history(Path(path))
    else:
        rows = []
    return [{**row, **marks} for row in rows]


def _metric_rows(client: MlflowClient, run: Run) -> list[dict[str, float]]:
    rows: dict[int, dict[str, float]] = {}
    for key in run.data.metrics:
        name = "seconds" if key == "epoch_seconds" else key
        if name not in EPOCH_COLUMNS:
            continue
        for metric in client.get_metric_history(run.info.run_id, key):
            rows.setdefault(metric.step, {}).setdefault(name, metric.value)
    return [rows[step] for step in sorted(rows)]
