"""MLflow, and the only room that knows it: a study's folder, told again to an MLflow store.

The folder is the truth; a tracker makes MLflow agree with it, in one thread of the driver. What
could not be told stays in the folder and is told later, once each: a run is looked for before it
is made, and a metric has the same time stamp whenever it is sent, so sending it again changes
nothing.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import math
import os
import platform
import re
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pandas as pd

from slb_autotune.config import TrialConfig
from slb_autotune.errors import InputError, SlbError, nearest
from slb_autotune.machine import resolve_device
from slb_autotune.run_folder import write_atomically
from slb_autotune.run_table import EPOCH_COLUMNS, RUN_COLUMNS, config_columns, typed
from slb_autotune.version import VERSION

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
LONGEST_PAUSE = 30.0
METRICS_A_BATCH = 800  # MLflow takes 1,000 things at once, params and tags among them
PARAMS_A_BATCH = 90  # MLflow takes 100
LONGEST_TAG = 4000  # MLflow cuts longer ones, older servers at 5,000
PAGE = 500

# How a trial of ours is called in MLflow; the tag `status` has our own word.
RUN_STATUS = {
    "running": "RUNNING",
    "done": "FINISHED",
    "reused": "FINISHED",
    "stopped": "KILLED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}
PARENT = "mlflow.parentRunId"


@dataclass(frozen=True)
class TrialEntry:
    """What the driver knows of a trial. `started` must stay the same over sessions.

    `stages` are the trial's phases in order, (folder, last epoch): they tell which rung an epoch
    belongs to. Without them each folder that is there is a rung, `full` the last.
    """

    number: int
    status: str
    reason: str
    source: str
    attempt: int
    config: TrialConfig
    params: dict[str, Any]
    metrics: dict[str, float]
    bits: dict[str, int]
    on_front: bool
    folder: Path
    started: float
    epochs_spent: int = 0
    stages: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class StudyEntry:
    """What the driver knows of the whole study.

    `started`, the beginning of its first session, tells it from an earlier study of its name.
    """

    name: str
    folder: Path
    started: float
    hypervolume: list[tuple[int, float]]
    front: pd.DataFrame
    tags: dict[str, str]
    status: str = "running"


class Tracker:
    """Tells MLflow about a study, in a thread of its own; no method waits for MLflow but `close`.

    The first `submit` of a session gives all trials, later ones those that changed. The epochs of
    running trials are read from their folders.
    """

    def __init__(self, uri: str | None, runs_folder: Path, study: str, study_folder: Path) -> None:
        self._uri = tracking_uri(uri, runs_folder)
        self._writer = _Writer(self._uri, runs_folder, study, study_folder)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._deadline = math.inf
        self._study: StudyEntry | None = None
        self._waiting: dict[int, TrialEntry] = {}
        self._running: dict[int, TrialEntry] = {}
        self._refused: dict[int, TrialEntry] = {}
        self._files: list[tuple[Path, str]] = []
        self._told: set[str] = set()
        self._away = False
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)

    @property
    def run_ids(self) -> Mapping[int, str]:
        """Trial -> its run, as far as they are known."""
        return dict(self._writer.run_ids)

    @property
    def parent_id(self) -> str | None:
        """The study's own run, once it is known."""
        return self._writer.state.parent or None

    def start(self) -> None:
        """Begin to write."""
        settle_environment()
        self._thread.start()

    def submit(self, study: StudyEntry, trials: Sequence[TrialEntry]) -> None:
        """Tell what changed; the newest entry of a trial wins."""
        with self._lock:
            self._study = study
            self._waiting.update((entry.number, entry) for entry in trials)
        if any(entry.status != "running" for entry in trials):
            self._wake.set()

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
        with self._lock:
            return len(self._waiting)

    # -- the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        pause = 0.0
        while True:
            closing = self._closing.is_set()
            answered = self._pass()
            if closing and (answered or self._over()):
                return
            if answered:
                pause = 0.0
                self._wake.wait(FLUSH_SECONDS)
                self._wake.clear()
            else:
                pause = min(max(1.0, 2 * pause), LONGEST_PAUSE)
                self._rest(pause)

    def _over(self) -> bool:
        return time.monotonic() >= self._deadline

    def _rest(self, pause: float) -> None:
        """Leave an absent server alone; once we are closing, only for a moment."""
        if self._closing.wait(0 if self._closing.is_set() else pause):
            time.sleep(max(0.0, min(0.5, self._deadline - time.monotonic())))

    def _pass(self) -> bool:
        """Send what waits; whether MLflow answered."""
        with self._lock:
            study, files, self._files = self._study, self._files, []
            trials = {**self._running, **self._waiting}
        self._writer.state.files += [[str(path), where] for path, where in files]
        try:
            if study is not None:
                self._writer.connect(study)
                self._send_trials(trials)
                self._writer.send_study(study)
        except Exception as error:  # whatever it is, training goes on
            self._stumble(error)
            return False
        finally:
            self._save()
        self._recover()
        return True

    def _send_trials(self, trials: Mapping[int, TrialEntry]) -> None:
        """Send each trial; one that is refused is tried again when it changed, or at the end."""
        for number, entry in sorted(trials.items()):
            if self._over():
                return
            if self._refused.get(number) is entry and not self._closing.is_set():
                continue
            try:
                self._writer.send_trial(entry)
            except Exception as error:
                if _is_away(error):
                    raise
                self._refused[number] = entry
                self._tell(f"trial {number} cannot be recorded: {self._words(error)}")
            else:
                self._settle(entry)
                self._save()

    def _settle(self, entry: TrialEntry) -> None:
        """The entry was sent: a running one is looked at again, unless a newer one waits."""
        with self._lock:
            if self._waiting.get(entry.number) is entry:
                del self._waiting[entry.number]
            if entry.status == "running":
                self._running[entry.number] = entry
            else:
                self._running.pop(entry.number, None)

    def _save(self) -> None:
        try:
            self._writer.save(force=self._closing.is_set() and not self._waiting)
        except OSError as error:
            self._tell(f"tracking.json cannot be written: {self._words(error)}")

    def _stumble(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            log.warning(
                "MLflow at %s is out of reach; results wait in the study's folder and are sent "
                "later (%s)",
                place_of(self._uri),
                self._words(error),
            )

    def _recover(self) -> None:
        if self._away:
            self._away = False
            log.info("MLflow at %s answers again", place_of(self._uri))

    def _tell(self, message: str) -> None:
        """Warn once of the same thing, whichever trial it befell."""
        kind = re.sub(r"[0-9a-f]{32}|\d+", "#", message)
        if kind not in self._told:
            self._told.add(kind)
            log.warning(message)

    def _words(self, error: Exception) -> str:
        text = (str(error).splitlines() or [""])[0].replace(self._uri, place_of(self._uri))
        return f"{type(error).__name__}: {text[:200]}"


@dataclass
class _State:
    """`tracking.json`: what MLflow has been told, so that nothing is told twice."""

    store: str = ""
    experiment: str = ""
    parent: str = ""
    study: dict[str, Any] = field(default_factory=dict)
    trials: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: list[list[str]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, store: str) -> _State:
        """As it was left; blank where there is none, or it is of another store."""
        try:
            state = cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return cls(store)
        return state if state.store == store else cls(store, files=state.files)


@dataclass(frozen=True)
class _Row:
    """An epoch of a trial: its place in the whole trial and its numbers."""

    step: int
    seconds: float  # since the trial began
    values: dict[str, float]


class _Writer:
    """Makes MLflow's runs agree with entries; every method may be called again."""

    def __init__(self, uri: str, runs_folder: Path, study: str, study_folder: Path) -> None:
        self.uri, self.study, self.folder = uri, study, study_folder
        self.artifacts = runs_folder.absolute() / "mlflow-artifacts" / study
        self.state_path = study_folder / "tracking.json"
        self.state = _State.read(self.state_path, _digest(uri))
        self.run_ids = {int(n): trial["run"] for n, trial in self.state.trials.items()}
        self.client: MlflowClient | None = None
        self.connected = False
        self.unsure: set[int] = set()
        self.sent: dict[int, tuple[object, ...]] = {}
        self.steps: dict[int, int] = {}
        self.tags: dict[int, dict[str, str]] = {}
        self.saved = ("", 0.0)

    def save(self, *, force: bool = False) -> None:
        """Write `tracking.json` where it changed, at most every other second unless forced."""
        text, when = self.saved
        if not force and time.monotonic() - when < FLUSH_SECONDS:
            return
        new = json.dumps(asdict(self.state))
        if new != text:
            write_atomically(self.state_path, new.encode())
        self.saved = (new, time.monotonic())

    # -- experiment and parent ---------------------------------------------------------------

    def connect(self, study: StudyEntry) -> None:
        """Find or make the experiment and the study's run, and find the runs of its trials."""
        if self.connected:
            return
        if self.client is None:
            self.client = make_client(self.uri)
        self.state.experiment = self._experiment()
        existed = self._find_parent(study)
        if not existed:
            self._make_parent(study)
        else:
            self._find_children()
        self.connected = True

    @property
    def _client(self) -> MlflowClient:
        assert self.client is not None
        return self.client

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name(self.study)
        if found is not None:
            return str(found.experiment_id)
        served = urlsplit(self.uri).scheme in ("http", "https")  # a server has its own place
        location = None if served else self.artifacts.as_uri()
        return str(self._client.create_experiment(self.study, artifact_location=location))

    def _find_parent(self, study: StudyEntry) -> bool:
        known = self.state.parent
        candidates = _search(self._client, self.state.experiment, "tags.kind = 'study'")
        same = [run for run in candidates if run.info.start_time == _stamp(study.started)]
        ids = [run.info.run_id for run in same]
        if known in ids:
            return True
        # The store was emptied, or this is another study of that name: nothing was told to it.
        self.state.study, self.state.trials = {}, {}
        self.run_ids.clear()
        self.state.parent = ids[0] if ids else ""
        return bool(ids)

    def _make_parent(self, study: StudyEntry) -> None:
        tags = {"kind": "study", "study": study.name, "version": VERSION}
        run = self._client.create_run(
            self.state.experiment, _stamp(study.started), tags, f"study {study.name}"
        )
        self.state.parent = run.info.run_id

    def _find_children(self) -> None:
        """The runs that MLflow has; a run that we do not know was made just before a kill."""
        query = f"tags.`{PARENT}` = '{self.state.parent}'"
        found: dict[str, Run] = {}
        for run in _search(self._client, self.state.experiment, query):
            found.setdefault(run.data.tags["trial"], run)
        kept = {n: t for n, t in self.state.trials.items() if n in found}
        for number, run in found.items():
            if kept.get(number, {}).get("run") != run.info.run_id:
                kept[number] = _known(run)
        self.state.trials = kept
        self.run_ids.clear()
        self.run_ids.update((int(n), trial["run"]) for n, trial in kept.items())

    # -- the study's run ---------------------------------------------------------------------

    def send_study(self, study: StudyEntry) -> None:
        """The study's tags, hypervolume, front, files and status, where they changed."""
        self._send_hypervolume(study)
        self._send_front(study)
        self._send_study_file()
        self._send_files()
        told = self.state.study
        tags = _split({**study.tags, "status": study.status})
        if told.get("tags") != tags:
            self._log(self.state.parent, tags=tags)
            _set_status(self._client, self.state.parent, study.status, None)
            told["tags"] = tags

    def _send_hypervolume(self, study: StudyEntry) -> None:
        from mlflow.entities import Metric

        last = self.state.study.get("hypervolume", -1)
        values = study.hypervolume[:]
        new = []
        for count, value in reversed(values):
            if count <= last:
                break
            new.append(Metric("hypervolume", value, _stamp(study.started) + count, count))
        if new:
            self._log(self.state.parent, metrics=new)
            self.state.study["hypervolume"] = values[-1][0]

    def _send_front(self, study: StudyEntry) -> None:
        text = study.front.to_csv(index=False, lineterminator="\n")
        if not len(study.front) or self.state.study.get("front") == _digest(text):
            return
        count = study.hypervolume[-1][0] if study.hypervolume else len(study.front)
        self._client.log_text(self.state.parent, text, f"fronts/front_{count:05d}.csv")
        self.state.study["front"] = _digest(text)

    def _send_study_file(self) -> None:
        path = self.folder / "study.yaml"
        if not path.exists():
            return
        digest = _digest(path.read_text())
        if self.state.study.get("file") != digest:
            self._client.log_artifact(self.state.parent, str(path))
            self.state.study["file"] = digest

    def _send_files(self) -> None:
        while self.state.files:
            path, where = self.state.files[0]
            if Path(path).exists():
                self._client.log_artifact(self.state.parent, path, where or None)
            else:
                log.warning("%s is gone and was not sent to MLflow", Path(path).name)
            self.state.files.pop(0)

    # -- a trial's run -----------------------------------------------------------------------

    def send_trial(self, entry: TrialEntry) -> None:
        """Make the trial's run agree with its entry and its folder."""
        known = self.state.trials.get(str(entry.number)) or self._make_run(entry)
        ended = entry.status != "running"
        digest = _entry_digest(entry)
        if known["told"] != digest:
            seen = (entry, *_history_times(entry))
            if ended or self.sent.get(entry.number) != seen:
                self._send_rows(entry, known)
                self.sent[entry.number] = seen
            if ended:
                self._send_end(entry, known)
                known["told"] = digest
                self.sent.pop(entry.number, None)
        if known["front"] != entry.on_front:
            self._client.set_tag(known["run"], "on_front", _word(entry.on_front))
            known["front"] = entry.on_front
        if ended and entry.on_front and not known["packed"]:
            self._send_network(entry, known)

    def _make_run(self, entry: TrialEntry) -> dict[str, Any]:
        """The trial's run; looked for where an earlier try may have made it unheard."""
        number = str(entry.number)
        query = f"tags.`{PARENT}` = '{self.state.parent}' and tags.trial = '{number}'"
        found = (
            next(_search(self._client, self.state.experiment, query), None)
            if entry.number in self.unsure
            else None
        )
        self.unsure.add(entry.number)
        tags = _trial_tags(entry, self.study)
        run = found or self._client.create_run(
            self.state.experiment,
            _stamp(entry.started),
            {**tags, PARENT: self.state.parent},
            f"trial {number}",
        )
        self.unsure.discard(entry.number)
        if found is None:
            self.tags[entry.number] = tags
        self.state.trials[number] = _known(run)
        self.run_ids[entry.number] = run.info.run_id
        return self.state.trials[number]

    def _send_rows(self, entry: TrialEntry, known: dict[str, Any]) -> None:
        """Epochs that were not sent yet, and at the end the result."""
        ended = entry.status != "running"
        rows = list(read_rows(entry))
        done = self.steps.get(entry.number, 0)
        start = known["start"]
        metrics = list(_row_metrics(rows[done:], start))
        if ended:
            metrics += _end_metrics(entry, rows, start)
        params = {} if done else _trial_params(entry)
        tags = _trial_tags(entry, self.study)
        told = self.tags.get(entry.number, {})
        new = {name: text for name, text in tags.items() if told.get(name) != text}
        self._log(known["run"], metrics, params, new)
        self.steps[entry.number], self.tags[entry.number] = len(rows), tags

    def _send_end(self, entry: TrialEntry, known: dict[str, Any]) -> None:
        rows = list(read_rows(entry))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "config.yaml").write_text(entry.config.to_yaml())
            (folder / "bits.json").write_text(json.dumps(entry.bits, indent=1))
            if rows:
                (folder / "history.csv").write_text(_history_csv(rows))
            self._client.log_artifacts(known["run"], name)
        end = known["start"] + _stamp(rows[-1].seconds if rows else 0.0)
        _set_status(self._client, known["run"], entry.status, end)

    def _send_network(self, entry: TrialEntry, known: dict[str, Any]) -> None:
        """The packed network of a member of the front; one that cannot be packed is told so."""
        with tempfile.TemporaryDirectory() as name:
            try:
                from slb_autotune.export.packed import pack_run

                path = pack_run(entry.folder / "full", Path(name) / "network.safetensors")
            except Exception as error:  # a user's network may raise anything
                log.warning("trial %s was not packed: %s", entry.number, error)
            else:
                self._client.log_artifact(known["run"], str(path))
        known["packed"] = True

    def _log(
        self,
        run: str,
        metrics: Sequence[Metric] = (),
        params: Mapping[str, str] = MappingProxyType({}),
        tags: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """As few batches as MLflow's limits allow, one for a usual trial."""
        from mlflow.entities import Param, RunTag

        words = [Param(name, value) for name, value in params.items()]
        labels = [RunTag(name, value) for name, value in tags.items()]
        sizes = (
            len(metrics) / METRICS_A_BATCH,
            len(words) / PARAMS_A_BATCH,
            len(labels) / PARAMS_A_BATCH,
        )
        for i in range(math.ceil(max(sizes))):
            self._client.log_batch(
                run,
                metrics[i * METRICS_A_BATCH : (i + 1) * METRICS_A_BATCH],
                words[i * PARAMS_A_BATCH : (i + 1) * PARAMS_A_BATCH],
                labels[i * PARAMS_A_BATCH : (i + 1) * PARAMS_A_BATCH],
            )


# -- what is sent ----------------------------------------------------------------------------


def _known(run: Run) -> dict[str, Any]:
    """What is remembered of a run that was made or found: its epochs are sent again."""
    front = run.data.tags.get("on_front") == "true"
    return {
        "run": run.info.run_id,
        "start": run.info.start_time,
        "told": "",
        "front": front,
        "packed": False,
    }


def _entry_digest(entry: TrialEntry) -> str:
    """Changes with all that is sent at the end but the front, which moves on its own."""
    told = (entry.status, entry.reason, entry.source, entry.attempt, entry.config.digest)
    rest = (entry.params, entry.metrics, entry.bits, entry.epochs_spent)
    return _digest(json.dumps((told, rest), sort_keys=True, default=str))


def _trial_tags(entry: TrialEntry, study: str) -> dict[str, str]:
    return _split(
        {
            "kind": "trial",
            "study": study,
            "trial": str(entry.number),
            "status": entry.status,
            "reason": entry.reason,
            "source": entry.source,
            "attempt": str(entry.attempt),
            "on_front": _word(entry.on_front),
            "seed": str(entry.config.seed),
            "version": VERSION,
            "machine": f"{platform.system()} {platform.machine()}",
            "device": str(resolve_device(entry.config.device)),
            "command": f"slb-autotune train {study}:{entry.number}",
            "params": json.dumps(entry.params, sort_keys=True),
            "bits": json.dumps(entry.bits) if entry.bits else "",
        }
    )


def _trial_params(entry: TrialEntry) -> dict[str, str]:
    """Settings under short names, and what the study searched; the bits as a digest."""
    values = {**entry.params, **config_columns(entry.config)}
    if entry.bits:
        values["bits_digest"] = _digest(json.dumps(entry.bits, sort_keys=True))[:10]
    return {
        re.sub(r"[^\w./ -]", "_", name)[:250]: str(value)[:500]
        for name, value in values.items()
        if value is not None and value != ""
    }


def _row_metrics(rows: Iterable[_Row], start: int) -> Iterator[Metric]:
    from mlflow.entities import Metric

    for row in rows:
        for name, value in row.values.items():
            key = "epoch_seconds" if name == "seconds" else name
            yield Metric(key, value, start + _stamp(row.seconds), row.step)


def _end_metrics(entry: TrialEntry, rows: Sequence[_Row], start: int) -> list[Metric]:
    """The result, a moment after the last epoch, so that it is the latest of its name.

    Older studies kept Ray's echo of the configuration (`config/order/...`) among their metrics.
    """
    from mlflow.entities import Metric

    last = rows[-1] if rows else _Row(0, 0.0, {})
    told = {name: value for name, value in last.values.items() if name != "seconds"}
    values = {"epochs_spent": float(entry.epochs_spent), **entry.metrics}
    stamp = start + _stamp(last.seconds) + 1
    return [
        Metric(name, float(value), stamp, last.step)
        for name, value in values.items()
        if "/" not in name and math.isfinite(value) and told.get(name) != value
    ]


def _history_csv(rows: Sequence[_Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    text = io.StringIO()
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    table.writerows(row.values for row in rows)
    return text.getvalue()


# -- a trial's folder ------------------------------------------------------------------------


def read_rows(entry: TrialEntry) -> Iterator[_Row]:
    """The epochs of all rungs in order, numbered through; `rung` and `epoch` are among them."""
    step, seconds = 0, 0.0
    begun: dict[str, float] = {}
    for rung, (name, until) in enumerate(_stages(entry)):
        for values in _read_history(entry.folder / name / "history.csv"):
            if begun.get(name, 0) < values["epoch"] <= until:
                step += 1
                seconds += values["seconds"]
                yield _Row(step, seconds, {"rung": float(rung), **values})
        begun[name] = until


def _stages(entry: TrialEntry) -> Sequence[tuple[str, float]]:
    if entry.stages:
        return entry.stages
    rungs = sorted(entry.folder.glob("rung*"), key=lambda path: int(path.name[4:]))
    return [(path.name, math.inf) for path in [*rungs, entry.folder / "full"]]


def _read_history(path: Path) -> list[dict[str, float]]:
    """The numbers of a history, to the last bit; what is blank is left out."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = ({n: float(text) for n, text in row.items() if text} for row in rows)
    return [{n: v for n, v in row.items() if math.isfinite(v)} for row in numbers]


def _history_times(entry: TrialEntry) -> Iterator[tuple[str, int]]:
    """What changes when an epoch was added."""
    for path in sorted(entry.folder.glob("*/history.csv")):
        yield path.parent.name, path.stat().st_mtime_ns


# -- reading back ----------------------------------------------------------------------------


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
    experiments = {e.name: e.experiment_id for e in _experiments(client)}
    if study is not None and study not in experiments:
        known = [name for name in experiments if name != "Default"]
        raise InputError(f"MLflow has no study {study!r}", nearest(study, known))
    for name, identity in sorted(experiments.items()):
        if study not in (None, name):
            continue
        parents = list(_search(client, identity, "tags.kind = 'study'"))
        if parents:
            parent = max(parents, key=lambda run: run.info.start_time).info.run_id
            runs = _search(client, identity, f"tags.`{PARENT}` = '{parent}'")
            yield from sorted(runs, key=lambda run: int(run.data.tags["trial"]))


def _run_row(run: Run) -> dict[str, Any]:
    tags, metrics = _joined(run.data.tags), run.data.metrics
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
            rows = _read_history(Path(path))
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


# -- MLflow ----------------------------------------------------------------------------------


def tracking_uri(uri: str | None, runs_folder: Path) -> str:
    """The store: as asked, as MLFLOW_TRACKING_URI says, or SQLite in the run folder."""
    if uri is not None:
        return uri
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{runs_folder.absolute()}/mlflow.db"


def place_of(uri: str) -> str:
    """A store as a person may read it: no user, no password, no long path."""
    parts = urlsplit(uri)
    if parts.hostname is None:
        return parts.path.rpartition("/")[2] or uri
    return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname


def settle_environment() -> None:
    """MLflow's settings for a writer that retries by itself and says nothing, unless set."""
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


def _search(client: MlflowClient, experiment: str, query: str) -> Iterator[Run]:
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


def _experiments(client: MlflowClient) -> Iterator[Any]:
    token: str | None = None
    while True:
        page = client.search_experiments(max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _set_status(client: MlflowClient, run: str, status: str, end: int | None) -> None:
    word = RUN_STATUS[status]
    if word == "RUNNING":
        client.update_run(run, word)
    else:
        client.set_terminated(run, word, end)


def _is_away(error: Exception) -> bool:
    """Whether the store is at fault, and not what was sent: then nothing else would pass."""
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    if isinstance(error, MlflowException):
        return not 400 <= error.get_http_status_code() < 500  # type: ignore[no-untyped-call]
    if isinstance(error, RequestException) and error.response is not None:
        return not 400 <= error.response.status_code < 500
    return isinstance(error, RequestException | SQLAlchemyError | ConnectionError | TimeoutError)


def _split(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags that MLflow takes: a long one goes on in `name.2`, and empty ones are left out."""
    found: dict[str, str] = {}
    for name, text in tags.items():
        for i in range(0, len(text), LONGEST_TAG):
            part = i // LONGEST_TAG + 1
            found[name if part == 1 else f"{name}.{part}"] = text[i : i + LONGEST_TAG]
    return found


def _joined(tags: Mapping[str, str]) -> dict[str, str]:
    """The inverse of `_split`."""
    found = {name: text for name, text in tags.items() if not re.search(r"\.\d+$", name)}
    for name in found:
        part = 2
        while f"{name}.{part}" in tags:
            found[name] += tags[f"{name}.{part}"]
            part += 1
    return found


def _stamp(seconds: float) -> int:
    return round(seconds * 1000)


def _word(flag: bool) -> str:
    return "true" if flag else "false"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
