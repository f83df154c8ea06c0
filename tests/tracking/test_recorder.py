"""MLflow holds a study's course: each change of the front, hypervolume after each trial."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from slb_autotune.search.ledger import Ledger
from slb_autotune.search.records import Outcome, StudySnapshot
from slb_autotune.search.storage import StudyFolder, open_ledger
from slb_autotune.tracking import MlflowRecorder, load_runs, make_client, make_recorder
from tests.builders import fake_row, play, tiny_study
from tests.tracking.helpers import BEGAN, RAN_ON, artifacts, free_port, uri_of

TRIALS = 12
SESSIONS = [{"version": "1.2.3", "started": BEGAN, "seconds": 1.0}]


@pytest.fixture
def ledger(tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A study that has not begun, beside an empty MLflow database."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(migrated, tmp_path / "mlflow.db")
    return open_study(tmp_path)


def open_study(runs: Path, **storage: str) -> Ledger:
    config = tiny_study(
        budget={"trials": TRIALS},
        storage={"folder": str(runs), **storage},
        constraints=["val_accuracy >= 80"],
    )
    files = StudyFolder(runs, config.name)
    files.path.mkdir(parents=True, exist_ok=True)
    return open_ledger(config, files)


def snapshot(ledger: Ledger) -> StudySnapshot:
    return ledger.snapshot(SESSIONS)


def session(ledger: Ledger, batches: list[int], status: str = "done") -> MlflowRecorder:
    """Play so many trials at a time; the recorder hears of a change after each batch."""
    recorder = MlflowRecorder(ledger.config)
    recorder.on_start(snapshot(ledger))
    for size in batches:
        play(ledger, size)
        recorder.on_change(snapshot(ledger))
    recorder.on_end(Outcome(snapshot(ledger), status, 1.0))
    assert recorder.waiting == 0
    return recorder


def course(ledger: Ledger) -> tuple[dict[int, list[int]], list[float]]:
    """Ended trials -> members of the front where it changed, and the hypervolume after each."""
    study = snapshot(ledger)
    fronts: dict[int, list[int]] = {}
    volumes, before = [], []
    for count in range(1, len(study.records) + 1):
        known = [r for r in study.results() if r.number < count]
        members = [r.number for r in study.front(known)]
        if members != before:
            fronts[count] = members
        before = members
        volumes.append(study.hypervolume(known))
    return fronts, volumes


def recorded(runs: Path) -> tuple[dict[int, list[int]], list[float]]:
    """The same from MLflow."""
    client, run = study_run(runs)
    fronts = {}
    for item in client.list_artifacts(run, "fronts"):
        table = pd.read_csv(client.download_artifacts(run, item.path))
        fronts[int(item.path[-9:-4])] = table["trial"].tolist()
    metrics = client.get_metric_history(run, "hypervolume")
    assert [metric.step for metric in metrics] == list(range(1, len(metrics) + 1))
    return fronts, [metric.value for metric in metrics]


def study_run(runs: Path) -> tuple[MlflowClient, str]:
    client: MlflowClient = make_client(uri_of(runs))
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    (parent,) = client.search_runs([experiment.experiment_id], "tags.kind = 'study'")
    return client, parent.info.run_id


@pytest.mark.parametrize("batches", [[1] * TRIALS, [5, 7]])
def test_every_change_of_the_front_is_recorded(
    ledger: Ledger, tmp_path: Path, batches: list[int]
) -> None:
    session(ledger, batches)
    fronts, volumes = course(ledger)
    assert len(fronts) > 2
    found, grown = recorded(tmp_path)
    assert found == fronts
    assert grown == pytest.approx(volumes)
    runs = load_runs("tiny", uri_of(tmp_path))
    assert sorted(runs["trial"][runs["on_front"]]) == sorted(fronts[max(fronts)])


def test_a_session_sends_what_the_one_before_it_could_not(ledger: Ledger, tmp_path: Path) -> None:
    play(ledger, 7)  # unrecorded, as where the server was unavailable until the driver was killed
    session(open_study(tmp_path), [5])
    fronts, volumes = course(open_study(tmp_path))
    found, grown = recorded(tmp_path)
    assert found == fronts
    assert grown == pytest.approx(volumes)


def test_a_resumed_study_adds_to_what_was_recorded(ledger: Ledger, tmp_path: Path) -> None:
    session(ledger, [7], "interrupted")
    before = recorded(tmp_path)
    session(open_study(tmp_path), [5])
    found, grown = recorded(tmp_path)
    assert before[0].items() <= found.items()
    assert grown[:7] == before[1]
    assert (found, pytest.approx(grown)) == course(open_study(tmp_path))


def test_trials_count_in_the_order_in_which_they_ended(ledger: Ledger, tmp_path: Path) -> None:
    asked = [ledger.ask() for _ in range(3)]
    for found in reversed(asked):
        assert found is not None
        ledger.tell(found[0], fake_row(found[1], 1, val_accuracy=90.0 + found[0]))
    session(open_study(tmp_path), [])
    fronts, _ = recorded(tmp_path)
    assert fronts[1] == [2]
    assert max(max(members) for members in fronts.values()) == 2


def test_only_what_changed_is_handed_over(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = MlflowRecorder(ledger.config)
    submitted: list[list[int]] = []
    monkeypatch.setattr(
        recorder.tracker, "submit", lambda _, trials: submitted.append([t.number for t in trials])
    )
    monkeypatch.setattr(recorder.tracker, "start", lambda: None)
    play(ledger, 3)
    recorder.on_start(snapshot(ledger))
    recorder.on_change(snapshot(ledger))
    found = ledger.ask()
    assert found is not None
    number, assignment = found
    recorder.on_change(snapshot(ledger))
    ledger.tell(number, fake_row(assignment, 1, val_accuracy=0.0))
    recorder.on_change(snapshot(ledger))
    recorder.on_change(snapshot(ledger))
    assert submitted == [[0, 1, 2], [3], [3]]


def test_what_a_trial_ran_on_comes_from_its_record(ledger: Ledger, tmp_path: Path) -> None:
    """This process, the driver's, has no such device and another version."""
    found = ledger.ask()
    assert found is not None
    number, assignment = found
    ledger.tell(number, fake_row(assignment, 1, ran_on=json.dumps(RAN_ON)))
    recorder = session(ledger, [1])
    client, parent = study_run(tmp_path)
    tags = client.get_run(recorder.tracker.run_ids[number]).data.tags
    assert {name: tags[name] for name in RAN_ON} == {n: str(v) for n, v in RAN_ON.items()}
    # Nothing is invented for a trial whose worker recorded nothing.
    assert not RAN_ON.keys() & client.get_run(recorder.tracker.run_ids[1]).data.tags.keys()
    tags = client.get_run(parent).data.tags
    assert (tags["machine"], tags["version"]) == (RAN_ON["machine"], "1.2.3")


@pytest.mark.parametrize(
    ("status", "state"),
    [("done", "FINISHED"), ("interrupted", "KILLED"), ("failed", "FAILED")],
)
def test_the_study_ends_with_the_outcomes_status(
    ledger: Ledger, tmp_path: Path, status: str, state: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text("a page")
    recorder = MlflowRecorder(ledger.config)
    recorder.on_start(snapshot(ledger))
    recorder.attach(page)
    recorder.on_end(Outcome(snapshot(ledger), status, 1.0))
    client, parent = study_run(tmp_path)
    run = client.get_run(parent)
    assert (run.info.status, run.data.tags["status"]) == (state, status)
    assert run.info.start_time == BEGAN * 1000
    assert artifacts(client, parent, "report") == {"report/page.html"}


def test_trials_that_could_not_be_sent_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slb_autotune.tracking.recorder.CLOSING_SECONDS", 1.0)
    ledger = open_study(tmp_path, mlflow=f"http://127.0.0.1:{free_port()}")
    play(ledger, 3)
    recorder = MlflowRecorder(ledger.config)
    recorder.on_start(snapshot(ledger))
    recorder.on_end(Outcome(snapshot(ledger), "done", 1.0))
    assert recorder.waiting == 3


def test_a_study_that_never_started_sends_nothing(ledger: Ledger, tmp_path: Path) -> None:
    play(ledger, 1)
    recorder = MlflowRecorder(ledger.config)
    recorder.on_end(Outcome(snapshot(ledger), "failed", 1.0))
    assert recorder.waiting == 0
    assert make_client(uri_of(tmp_path)).get_experiment_by_name("tiny") is None


def test_a_study_may_want_no_record() -> None:
    assert make_recorder(tiny_study(storage={"mlflow": "off"})) is None
    assert isinstance(make_recorder(tiny_study()), MlflowRecorder)
