"""An MLflow store: its address, its queries and its limits."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

LONGEST_TAG = 4000  # MLflow cuts longer ones, older servers at 5,000
METRICS_PER_BATCH = 800  # MLflow takes 1,000 items at once, params and tags among them
PARAMS_PER_BATCH = 90  # MLflow takes 100
PAGE = 500

# MLflow's status of a study's or trial's run; the tag `status` has our own.
RUN_STATUS = {
    "running": "RUNNING",
    "done": "FINISHED",
    "reused": "FINISHED",
    "stopped": "KILLED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}
PARENT = "mlflow.parentRunId"


def tracking_uri(uri: str | None, runs_folder: Path) -> str:
    """The store: as asked, as MLFLOW_TRACKING_URI says, or SQLite in the run folder."""
    if uri is not None:
        return uri
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{runs_folder.absolute()}/mlflow.db"


def public_address(uri: str) -> str:
    """The address of a store for messages: no user, no password, no long path."""
    parts = urlsplit(uri)
    if parts.hostname is None:
        return parts.path.rpartition("/")[2] or uri
    return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname


def configure_environment() -> None:
    """MLflow's settings for a writer that retries by itself and prints nothing, unless set."""
    for name, value in {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }.items():
        os.environ.setdefault(name, value)


def make_client(uri: str) -> MlflowClient:
    """A client of the store; a new database gets its tables, which takes seconds."""
    from mlflow import MlflowClient

    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=uri)


def find_runs(client: MlflowClient, experiment: str, query: str) -> Iterator[Run]:
    """All runs that a query finds, the oldest first."""
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment],
            query,
            max_results=PAGE,
            order_by=["attributes.start_time ASC"],
            page_token=token,
        )
        yield from page
        token = page.token
        if not token:
            return


def find_experiments(client: MlflowClient) -> Iterator[Any]:
    """All experiments."""
    token: str | None = None
    while True:
        page = client.search_experiments(max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def set_status(client: MlflowClient, run: str, status: str, end: int | None) -> None:
    """Set MLflow's status of a run from ours."""
    state = RUN_STATUS[status]
    if state == "RUNNING":
        client.update_run(run, state)
    else:
        client.set_terminated(run, state, end)


def log_batch(
    client: MlflowClient,
    run: str,
    metrics: Sequence[Metric] = (),
    params: Mapping[str, str] = MappingProxyType({}),
    tags: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Log in as few batches as MLflow's limits allow, one for a usual trial."""
    from mlflow.entities import Param, RunTag

    all_params = [Param(name, value) for name, value in params.items()]
    all_tags = [RunTag(name, value) for name, value in tags.items()]
    batches = max(
        math.ceil(len(metrics) / METRICS_PER_BATCH),
        math.ceil(len(all_params) / PARAMS_PER_BATCH),
        math.ceil(len(all_tags) / PARAMS_PER_BATCH),
    )
    for i in range(batches):
        client.log_batch(
            run,
            metrics[i * METRICS_PER_BATCH : (i + 1) * METRICS_PER_BATCH],
            all_params[i * PARAMS_PER_BATCH : (i + 1) * PARAMS_PER_BATCH],
            all_tags[i * PARAMS_PER_BATCH : (i + 1) * PARAMS_PER_BATCH],
        )


def is_unavailable(error: Exception) -> bool:
    """Whether the store is at fault, and not what was sent: then nothing else would pass."""
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    if isinstance(error, MlflowException):
        return not 400 <= error.get_http_status_code() < 500  # type: ignore[no-untyped-call]
    if isinstance(error, RequestException) and error.response is not None:
        return not 400 <= error.response.status_code < 500
    return isinstance(error, RequestException | SQLAlchemyError | ConnectionError | TimeoutError)


def split_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags that MLflow takes: a long one continues in `name.2`, and empty ones are left out."""
    found: dict[str, str] = {}
    for name, text in tags.items():
        for i in range(0, len(text), LONGEST_TAG):
            part = i // LONGEST_TAG + 1
            found[name if part == 1 else f"{name}.{part}"] = text[i : i + LONGEST_TAG]
    return found


def joined_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The inverse of `split_tags`."""
    found = {name: text for name, text in tags.items() if not re.search(r"\.\d+$", name)}
    for name in found:
        part = 2
        while f"{name}.{part}" in tags:
            found[name] += tags[f"{name}.{part}"]
            part += 1
    return found


def milliseconds(seconds: float) -> int:
    """Seconds as MLflow counts time."""
    return round(seconds * 1000)


def as_tag(value: Any) -> str:
    """A value as the text of a tag: empty where there is none, floats to the last bit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def digest_of(text: str) -> str:
    """Sixteen characters that change with the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
