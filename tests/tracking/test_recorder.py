"""MLflow holds a study's course: each change of the front, hypervolume after each trial."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from slb_autotune.search.ledger import Ledger
from slb_autotune.search.storage import StudyFolder, open_ledger
from slb_autotune.tracking import make_client
from slb_autotune.tracking.recorder import Recorder
from tests.builders import fake_row, play, tiny_study

BEGAN = 1_700_000_000.0
TRIALS = 12


@pytest.fixture
def ledger(tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A study that has not begun, beside an empty MLflow database."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(migrated, tmp_path / "mlflow.db")
    return open_study(tmp_path)


def open_study(runs: Path) -> Ledger:
    config = tiny_study(
        budget={"trials": TRIALS},
        storage={"folder": str(runs)},
        constraints=["val_accuracy >= 80"],
    )
    files = StudyFolder(runs, config.name)
    files.path.mkdir(parents=True, exist_ok=True)
    return open_ledger(config, files)


def session(ledger: Ledger, batches: list[int]) -> None:
    """Play so many trials at a time, telling MLflow after each batch."""
    recorder = Recorder(ledger, BEGAN)
    recorder.start()
    for size in batches:
        play(ledger, size)
        recorder.tell()
    assert recorder.front == ledger.front()
    assert recorder.close("done") == 0


def course(ledger: Ledger) -> tuple[dict[int, list[int]], list[float]]:
    """Ended trials -> members of the front where it changed, and the hypervolume after each."""
    fronts: dict[int, list[int]] = {}
    volumes, before = [], []
    for count in range(1, len(ledger.records) + 1):
        known = [r for r in ledger.results() if r.number < count]
        members = [r.number for r in ledger.front(known)]
        if members != before:
            fronts[count] = members
        before = members
        volumes.append(ledger.hypervolume(known))
    return fronts, volumes


def recorded(runs: Path) -> tuple[dict[int, list[int]], list[float]]:
    """The same from MLflow."""
    client: MlflowClient = make_client(f"sqlite:///{runs}/mlflow.db")
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    (parent,) = client.search_runs([experiment.experiment_id], "tags.kind = 'study'")
    run = parent.info.run_id
    fronts = {}
    for item in client.list_artifacts(run, "fronts"):
        table = pd.read_csv(client.download_artifacts(run, item.path))
        fronts[int(item.path[-9:-4])] = table["trial"].tolist()
    metrics = client.get_metric_history(run, "hypervolume")
    assert [metric.step for metric in metrics] == list(range(1, len(metrics) + 1))
    return fronts, [metric.value for metric in metrics]


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


def test_a_session_tells_what_the_one_before_it_could_not(ledger: Ledger, tmp_path: Path) -> None:
    play(ledger, 7)  # unrecorded, as where the server was away until the driver was killed
    session(open_study(tmp_path), [5])
    fronts, volumes = course(open_study(tmp_path))
    found, grown = recorded(tmp_path)
    assert found == fronts
    assert grown == pytest.approx(volumes)


def test_a_study_that_goes_on_adds_to_what_was_recorded(ledger: Ledger, tmp_path: Path) -> None:
    session(ledger, [7])
    before = recorded(tmp_path)
    session(open_study(tmp_path), [5])
    found, grown = recorded(tmp_path)
    assert before[0].items() <= found.items()
    assert grown[:7] == before[1]
    assert (found, pytest.approx(grown)) == course(open_study(tmp_path))


def test_trials_count_in_the_order_in_which_they_ended(ledger: Ledger, tmp_path: Path) -> None:
    taken = [ledger.next_order() for _ in range(3)]
    for found in reversed(taken):
        assert found is not None
        ledger.finish(found[0], fake_row(found[1], 1, val_accuracy=90.0 + found[0]))
    session(open_study(tmp_path), [])
    found, _ = recorded(tmp_path)
    assert found[1] == [2]
    assert max(max(members) for members in found.values()) == 2
