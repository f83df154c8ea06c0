"""Makes the runs of an MLflow store agree with entries, and remembers what it was told."""

from __future__ import annotations

import json
import logging
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from slb_autotune.config.files import write_atomically
from slb_autotune.tracking.entries import StudyEntry, TrialEntry
from slb_autotune.tracking.messages import (
    end_metrics,
    entry_digest,
    history_csv,
    history_times,
    read_rows,
    row_metrics,
    trial_params,
    trial_tags,
)
from slb_autotune.tracking.store import (
    PARENT,
    digest_of,
    find_runs,
    flag_word,
    make_client,
    milliseconds,
    set_status,
    split_tags,
)
from slb_autotune.version import VERSION

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

log = logging.getLogger(__name__)

SAVE_SECONDS = 2.0
METRICS_A_BATCH = 800  # MLflow takes 1,000 things at once, params and tags among them
PARAMS_A_BATCH = 90  # MLflow takes 100


@dataclass
class State:
    """`tracking.json`: what MLflow has been told, so that nothing is told twice."""

    store: str = ""
    experiment: str = ""
    parent: str = ""
    study: dict[str, Any] = field(default_factory=dict)
    trials: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: list[list[str]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, store: str) -> State:
        """As it was left; blank where there is none, or it is of another store."""
        try:
            state = cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return cls(store)
        return state if state.store == store else cls(store, files=state.files)


class Writer:
    """Makes MLflow's runs agree with entries; every method may be called again."""

    def __init__(self, uri: str, runs_folder: Path, study: str, study_folder: Path) -> None:
        self.uri, self.study, self.folder = uri, study, study_folder
        self.artifacts = runs_folder.absolute() / "mlflow-artifacts" / study
        self.state_path = study_folder / "tracking.json"
        self.state = State.read(self.state_path, digest_of(uri))
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
        if not force and time.monotonic() - when < SAVE_SECONDS:
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
        candidates = find_runs(self._client, self.state.experiment, "tags.kind = 'study'")
        same = [run for run in candidates if run.info.start_time == milliseconds(study.started)]
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
            self.state.experiment, milliseconds(study.started), tags, f"study {study.name}"
        )
        self.state.parent = run.info.run_id

    def _find_children(self) -> None:
        """The runs that MLflow has; a run that we do not know was made just before a kill."""
        query = f"tags.`{PARENT}` = '{self.state.parent}'"
        found: dict[str, Run] = {}
        for run in find_runs(self._client, self.state.experiment, query):
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
        """The study's tags, hypervolume, fronts, files and status, where they changed."""
        self._send_hypervolume(study)
        self._send_fronts(study)
        self._send_study_file()
        self._send_files()
        told = self.state.study
        tags = split_tags({**study.tags, "status": study.status})
        if told.get("tags") != tags:
            self._log(self.state.parent, tags=tags)
            set_status(self._client, self.state.parent, study.status, None)
            told["tags"] = tags

    def _send_hypervolume(self, study: StudyEntry) -> None:
        from mlflow.entities import Metric

        told = self.state.study.get("hypervolume", 0)
        start = milliseconds(study.started)
        new = [
            Metric("hypervolume", value, start + count, count)
            for count, value in study.hypervolume
            if count > told
        ]
        if new:
            self._log(self.state.parent, metrics=new)
            self.state.study["hypervolume"] = study.hypervolume[-1][0]

    def _send_fronts(self, study: StudyEntry) -> None:
        told = self.state.study.get("fronts", 0)
        for count, front in study.fronts:
            if count > told:
                text = front.to_csv(index=False, lineterminator="\n")
                self._client.log_text(self.state.parent, text, f"fronts/front_{count:05d}.csv")
                self.state.study["fronts"] = count

    def _send_study_file(self) -> None:
        path = self.folder / "study.yaml"
        if not path.exists():
            return
        digest = digest_of(path.read_text())
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
        digest = entry_digest(entry)
        if known["told"] != digest:
            seen = (entry, *history_times(entry))
            if ended or self.sent.get(entry.number) != seen:
                self._send_rows(entry, known)
                self.sent[entry.number] = seen
            if ended:
                self._send_end(entry, known)
                known["told"] = digest
                self.sent.pop(entry.number, None)
        if known["front"] != entry.on_front:
            self._client.set_tag(known["run"], "on_front", flag_word(entry.on_front))
            known["front"] = entry.on_front
        if ended and entry.on_front and not known["packed"]:
            self._send_network(entry, known)

    def _make_run(self, entry: TrialEntry) -> dict[str, Any]:
        """The trial's run; looked for where an earlier try may have made it unheard."""
        number = str(entry.number)
        query = f"tags.`{PARENT}` = '{self.state.parent}' and tags.trial = '{number}'"
        found = (
            next(find_runs(self._client, self.state.experiment, query), None)
            if entry.number in self.unsure
            else None
        )
        self.unsure.add(entry.number)
        tags = trial_tags(entry, self.study)
        run = found or self._client.create_run(
            self.state.experiment,
            milliseconds(entry.started),
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
        metrics = list(row_metrics(rows[done:], start))
        if ended:
            metrics += end_metrics(entry, rows, start)
        params = {} if done else trial_params(entry)
        tags = trial_tags(entry, self.study)
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
                (folder / "history.csv").write_text(history_csv(rows))
            self._client.log_artifacts(known["run"], name)
        end = known["start"] + milliseconds(rows[-1].seconds if rows else 0.0)
        set_status(self._client, known["run"], entry.status, end)

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
