"""Makes the runs of an MLflow store agree with entries, and remembers what it has sent."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from slb_autotune.tracking.entries import StudyEntry, TrialEntry
from slb_autotune.tracking.payload import (
    end_metrics,
    entry_digest,
    epoch_metrics,
    history_csv,
    history_times,
    known_metrics,
    read_epochs,
    trial_params,
    trial_tags,
)
from slb_autotune.tracking.state import State, TrialState, write_state
from slb_autotune.tracking.store import (
    PARENT,
    as_tag,
    digest_of,
    find_runs,
    log_batch,
    make_client,
    milliseconds,
    set_status,
    split_tags,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

log = logging.getLogger(__name__)

SAVE_SECONDS = 2.0


class Writer:
    """Makes MLflow's runs agree with entries; every method may be called again."""

    def __init__(self, uri: str, runs_folder: Path, study: str, study_folder: Path) -> None:
        self.uri, self.study, self.folder = uri, study, study_folder
        self.artifacts = runs_folder.absolute() / "mlflow-artifacts" / study
        self.state = State.read(study_folder, digest_of(uri))
        self.client: MlflowClient | None = None
        self.connected = False
        self.unconfirmed: set[int] = set()  # trials whose run may have been created unanswered
        # Of the trials of this session: what was last seen of their folders, and what was sent.
        self.seen: dict[int, tuple[object, ...]] = {}
        self.steps: dict[int, int] = {}
        self.tags: dict[int, dict[str, str]] = {}
        self.saved = ("", 0.0)

    @property
    def run_ids(self) -> dict[int, str]:
        """Trial -> its run; may be read from another thread."""
        return {number: trial.run_id for number, trial in dict(self.state.trials).items()}

    def save(self, *, force: bool = False) -> None:
        """Write `tracking.json` where it changed, at most every other second unless forced."""
        text, when = self.saved
        if not force and time.monotonic() - when < SAVE_SECONDS:
            return
        new = self.state.text()
        if new != text:
            write_state(self.folder, new)
        self.saved = (new, time.monotonic())

    # -- experiment and parent ---------------------------------------------------------------

    def connect(self, study: StudyEntry) -> None:
        """Find or create the experiment and the study's run, and find the runs of its trials."""
        if self.connected:
            return
        if self.client is None:
            self.client = make_client(self.uri)
        self.state.experiment = self._find_or_create_experiment()
        if self._find_parent(study):
            self._find_children()
        else:
            self._create_parent(study)
        self.connected = True

    @property
    def _client(self) -> MlflowClient:
        assert self.client is not None
        return self.client

    def _find_or_create_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self.study)
        if found is not None:
            return str(found.experiment_id)
        served = urlsplit(self.uri).scheme in ("http", "https")  # a server decides by itself
        location = None if served else self.artifacts.as_uri()
        return str(self._client.create_experiment(self.study, artifact_location=location))

    def _find_parent(self, study: StudyEntry) -> bool:
        candidates = find_runs(self._client, self.state.experiment, "tags.kind = 'study'")
        start = milliseconds(study.started)
        ids = [run.info.run_id for run in candidates if run.info.start_time == start]
        if self.state.parent in ids:
            return True
        # The store was emptied, or this is another study of that name: it was sent nothing.
        self.state.forget_runs()
        self.state.parent = ids[0] if ids else ""
        return bool(ids)

    def _create_parent(self, study: StudyEntry) -> None:
        run = self._client.create_run(
            self.state.experiment,
            milliseconds(study.started),
            {"kind": "study", **split_tags(study.tags)},
            f"study {study.name}",
        )
        self.state.parent = run.info.run_id

    def _find_children(self) -> None:
        """The runs that MLflow has; one that we do not know was created just before a kill."""
        query = f"tags.`{PARENT}` = '{self.state.parent}'"
        found: dict[int, Run] = {}
        for run in find_runs(self._client, self.state.experiment, query):
            found.setdefault(int(run.data.tags["trial"]), run)
        kept = {n: trial for n, trial in self.state.trials.items() if n in found}
        for number, run in found.items():
            if number not in kept or kept[number].run_id != run.info.run_id:
                kept[number] = _unlogged(run)
        self.state.trials = kept

    # -- the study's run ---------------------------------------------------------------------

    def send_study(self, study: StudyEntry) -> None:
        """The study's tags, hypervolume, fronts, files and status, where they changed."""
        self._send_hypervolume(study)
        self._send_fronts(study)
        self._send_study_file()
        self._send_files()
        tags = split_tags({**study.tags, "status": study.status})
        if self.state.study.tags != tags:
            log_batch(self._client, self.state.parent, tags=tags)
            set_status(self._client, self.state.parent, study.status, None)
            self.state.study.tags = tags

    def _send_hypervolume(self, study: StudyEntry) -> None:
        from mlflow.entities import Metric

        logged, start = self.state.study.hypervolume, milliseconds(study.started)
        new = [
            Metric("hypervolume", value, start + count, count)
            for count, value in study.hypervolume
            if count > logged
        ]
        if new:
            log_batch(self._client, self.state.parent, new)
            self.state.study.hypervolume = study.hypervolume[-1][0]

    def _send_fronts(self, study: StudyEntry) -> None:
        logged = self.state.study.fronts
        for count, front in study.fronts:
            if count > logged:
                text = front.to_csv(index=False, lineterminator="\n")
                self._client.log_text(self.state.parent, text, f"fronts/front_{count:05d}.csv")
                self.state.study.fronts = count

    def _send_study_file(self) -> None:
        path = self.folder / "study.yaml"
        if not path.exists():
            return
        digest = digest_of(path.read_text())
        if self.state.study.file != digest:
            self._client.log_artifact(self.state.parent, str(path))
            self.state.study.file = digest

    def _send_files(self) -> None:
        while self.state.files:
            path, where = self.state.files[0]
            if Path(path).exists():
                self._client.log_artifact(self.state.parent, path, where or None)
            else:
                log.warning("%s no longer exists and was not sent to MLflow", Path(path).name)
            self.state.files.pop(0)

    # -- a trial's run -----------------------------------------------------------------------

    def send_trial(self, entry: TrialEntry) -> None:
        """Make the trial's run agree with its entry and its folder."""
        trial = self.state.trials.get(entry.number) or self._create_run(entry)
        digest = entry_digest(entry)
        if trial.logged != digest:
            self._send_changes(entry, trial)
            if not entry.is_running:
                self._send_end(entry, trial)
                trial.logged = digest
        if trial.on_front != entry.on_front:
            self._client.set_tag(trial.run_id, "on_front", as_tag(entry.on_front))
            trial.on_front = entry.on_front
        if entry.on_front and not entry.is_running and not trial.packed:
            self._send_network(entry, trial)

    def _create_run(self, entry: TrialEntry) -> TrialState:
        """The trial's run; looked for where an earlier call may have created it unanswered."""
        query = f"tags.`{PARENT}` = '{self.state.parent}' and tags.trial = '{entry.number}'"
        found = (
            next(find_runs(self._client, self.state.experiment, query), None)
            if entry.number in self.unconfirmed
            else None
        )
        self.unconfirmed.add(entry.number)
        tags = trial_tags(entry)
        run = found or self._client.create_run(
            self.state.experiment,
            milliseconds(entry.record.started),
            {**tags, PARENT: self.state.parent},
            f"trial {entry.number}",
        )
        self.unconfirmed.discard(entry.number)
        if found is None:
            self.tags[entry.number] = tags
        self.state.trials[entry.number] = _unlogged(run)
        return self.state.trials[entry.number]

    def _send_changes(self, entry: TrialEntry, trial: TrialState) -> None:
        """Tags, parameters and epochs, unless neither the entry nor the folder has changed."""
        seen = (entry, *history_times(entry))
        if entry.is_running and self.seen.get(entry.number) == seen:
            return
        epochs = list(read_epochs(entry))
        done = self.steps.get(entry.number)
        metrics: list[Metric] = [] if done is not None else known_metrics(entry, trial.start)
        metrics += epoch_metrics(epochs[done or 0 :], trial.start)
        if not entry.is_running:
            metrics += end_metrics(entry, epochs, trial.start)
        params = {} if done is not None else trial_params(entry)
        tags, logged = trial_tags(entry), self.tags.get(entry.number, {})
        new = {name: text for name, text in tags.items() if logged.get(name) != text}
        log_batch(self._client, trial.run_id, metrics, params, new)
        self.steps[entry.number], self.tags[entry.number] = len(epochs), tags
        self.seen[entry.number], trial.on_front = seen, entry.on_front

    def _send_end(self, entry: TrialEntry, trial: TrialState) -> None:
        """The files and the final status of an ended trial."""
        epochs = list(read_epochs(entry))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "config.yaml").write_text(entry.record.config.to_yaml())
            (folder / "bits.json").write_text(json.dumps(entry.record.bits, indent=1))
            if epochs:
                (folder / "history.csv").write_text(history_csv(epochs))
            self._client.log_artifacts(trial.run_id, name)
        end = trial.start + milliseconds(epochs[-1].seconds if epochs else 0.0)
        set_status(self._client, trial.run_id, entry.record.status, end)
        self.seen.pop(entry.number, None)

    def _send_network(self, entry: TrialEntry, trial: TrialState) -> None:
        """The packed network of a member of the front; one that cannot be packed is reported."""
        with tempfile.TemporaryDirectory() as name:
            try:
                from slb_autotune.export.packed import pack_run

                path = pack_run(entry.folder / "full", Path(name) / "network.safetensors")
            except Exception as error:  # a user's network may raise anything
                log.warning("trial %s was not packed: %s", entry.number, error)
            else:
                self._client.log_artifact(trial.run_id, str(path))
        trial.packed = True


def _unlogged(run: Run) -> TrialState:
    """What is remembered of a run that was created or found: its epochs are sent again."""
    on_front = run.data.tags.get("on_front") == "true"
    return TrialState(run.info.run_id, run.info.start_time, on_front=on_front)
