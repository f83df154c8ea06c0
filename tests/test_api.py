"""Study: what is loaded, what a session leaves behind, and a small study with real Ray."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from slb_autotune import Study
from slb_autotune.api import Session
from slb_autotune.errors import InputError
from slb_autotune.search.records import Outcome, StudyListener, StudySnapshot
from tests.builders import TINY, tiny_study
from tests.cli.helpers import played_study, playing_driver

# -- loading -----------------------------------------------------------------------------------


def test_a_study_is_loaded_by_name_from_a_file_and_from_a_mapping(tmp_path: Path) -> None:
    played = played_study(tmp_path)
    by_name = Study.load("tiny", runs=tmp_path)
    assert by_name.config == played.config
    assert (by_name.folder, by_name.exists) == (tmp_path / "studies" / "tiny", True)
    (tmp_path / "mine.yaml").write_text(played.config.to_yaml())
    assert Study.load(tmp_path / "mine.yaml") == by_name
    assert Study.load(str(tmp_path / "mine.yaml")) == by_name
    assert Study.load(played.config.to_mapping()) == by_name


def test_a_name_that_is_not_there_is_explained(tmp_path: Path) -> None:
    played_study(tmp_path)
    with pytest.raises(InputError, match=r"there is no study 'tinny' Hint: did you mean 'tiny'\?"):
        Study.load("tinny", runs=tmp_path)


def test_the_run_folder_is_the_one_asked_for_or_the_studys_own(tmp_path: Path) -> None:
    mapping = tiny_study(storage={"folder": "shared"}).to_mapping()
    assert Study.load(mapping).runs == Path("shared")
    assert Study.load(mapping, runs=tmp_path).runs == tmp_path
    assert Study.load(tiny_study().to_mapping()).folder == Path("slb-runs/studies/tiny")
    assert not Study.load(mapping, runs=tmp_path).exists


# -- a session without Ray ---------------------------------------------------------------------


class Recorder(StudyListener):
    """In the place of MLflow's: keeps what happens, in order."""

    waiting = 2

    def __init__(self) -> None:
        self.events: list[str] = []

    def attach(self, path: Path, where: str = "report") -> None:
        self.events.append(f"attach {path.name}")

    def on_end(self, outcome: Outcome) -> None:
        self.events.append("recorder ends")


class View(StudyListener):
    def __init__(self, events: list[str]) -> None:
        self.events = events

    def on_start(self, study: StudySnapshot) -> None:
        self.events.append("view starts")

    def on_end(self, outcome: Outcome) -> None:
        self.events.append("view ends")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Sessions without Ray and MLflow; the report is one empty page."""

    def write(result: object, folder: Path, **_: object) -> Path:
        folder.mkdir()
        (folder / "index.html").touch()
        return folder / "index.html"

    found = Recorder()
    monkeypatch.setattr("slb_autotune.search.driver.run_study", playing_driver())
    monkeypatch.setattr("slb_autotune.tracking.recorder.make_recorder", lambda config: found)
    monkeypatch.setattr("slb_autotune.report.study_report.write_study_report", write)
    monkeypatch.setattr("slb_autotune.report.recorded.recorded_files", lambda result, page: [page])
    return found


def small(folder: Path, **changes: Any) -> Study:
    values = {"budget": {"trials": 3}, "storage": {"folder": str(folder)}, **changes}
    return Study(tiny_study(**values))


def test_the_view_ends_first_and_mlflow_gets_the_report_before_it_ends(
    recorder: Recorder, tmp_path: Path
) -> None:
    session = small(tmp_path).run(View(recorder.events))
    assert recorder.events == ["view starts", "view ends", "attach index.html", "recorder ends"]
    assert (session.status, session.interrupted, session.waiting) == ("done", False, 2)
    assert session.report == tmp_path / "studies" / "tiny" / "report" / "index.html"


def test_an_interrupted_session_saves_its_tables_and_writes_no_report(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slb_autotune.search.driver.run_study", playing_driver("interrupted"))
    study = small(tmp_path)
    session = study.run()
    assert session.interrupted
    assert session.report is None
    assert recorder.events == ["recorder ends"]
    assert (study.folder / "result" / "study.json").exists()


def test_a_report_that_fails_does_not_end_the_study(
    recorder: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no ink\nleft")

    monkeypatch.setattr("slb_autotune.report.study_report.write_study_report", broken)
    session = small(tmp_path).run()
    assert (session.status, session.report) == ("done", None)
    assert len(session.result.trials) == 3
    assert recorder.events == ["recorder ends"]
    assert caplog.messages == [
        "the report could not be written: no ink left; `slb-autotune report tiny` tries again."
    ]


def test_a_study_resumes_with_the_configuration_of_its_last_session(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = small(tmp_path)
    study.run()
    shutil.rmtree(study.folder / "report")
    changed = small(tmp_path, trial={**TINY, "epochs": 9})
    session = changed.resume(trials=5)
    assert len(session.result.trials) == 5
    assert session.result.base.epochs == 1
    assert Study.load("tiny", runs=tmp_path).config.budget.trials == 5


# -- a real study ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    study: Study
    session: Session
    uri: str


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Ran]:
    """Three trials of a tiny study, one after the other, logged to MLflow."""
    import ray

    from slb_autotune.search.cluster import start_ray

    runs = tmp_path_factory.mktemp("runs")
    shutil.copy(migrated, runs / "mlflow.db")
    uri = f"sqlite:///{runs}/mlflow.db"
    study = Study(
        tiny_study(
            trial={**TINY, "network.options": {"blocks": 1}},
            budget={"trials": 3},
            resources={"concurrent": 1},
            storage={"folder": str(runs), "mlflow": uri},
        )
    )
    start_ray(None, 1)
    yield Ran(study, study.run(), uri)
    ray.shutdown()


@pytest.mark.slow
def test_a_study_runs_from_python(ran: Ran) -> None:
    result = ran.session.result
    assert (ran.session.status, ran.session.waiting) == ("done", 0)
    assert result.trials["status"].tolist() == ["done"] * 3
    assert result.epochs["epoch"].tolist() == [1, 1, 1]
    assert not result.front.empty
    assert 0 < result.hypervolume < 1
    assert ran.session.report == ran.study.folder / "report" / "index.html"
    pd.testing.assert_frame_equal(ran.study.result.trials, result.trials)
    with pytest.raises(InputError, match="study 'tiny' exists already"):
        ran.study.run()


@pytest.mark.slow
def test_mlflow_has_its_trials_and_its_report(ran: Ran) -> None:
    from mlflow import MlflowClient

    from slb_autotune import load_runs

    logged = load_runs("tiny", uri=ran.uri).set_index("trial").sort_index()
    trials = ran.session.result.trials.set_index("trial")
    assert logged["val_accuracy"].tolist() == trials["val_accuracy"].tolist()
    client = MlflowClient(ran.uri)
    experiment = client.get_experiment_by_name("tiny").experiment_id
    (parent,) = [
        run
        for run in client.search_runs([experiment])
        if "mlflow.parentRunId" not in run.data.tags
    ]
    files = {file.path for file in client.list_artifacts(parent.info.run_id, "report")}
    assert "report/index.html" in files


@pytest.mark.slow
def test_a_copied_folder_is_read_reported_and_resumed_where_it_is(
    ran: Ran, tmp_path: Path
) -> None:
    copied = tmp_path / "elsewhere" / "studies" / "tiny"
    shutil.copytree(ran.study.folder, copied)
    shutil.rmtree(copied / "report")
    study = Study.load("tiny", runs=tmp_path / "elsewhere")
    assert study.folder == copied
    pd.testing.assert_frame_equal(study.result.trials, ran.session.result.trials)
    page = study.report()
    assert page == copied / "report" / "index.html"
    assert page.exists()

    before = (ran.study.folder / "optuna.journal").read_bytes()
    session = study.resume(trials=4)
    assert len(session.result.trials) == 4
    assert session.result.run_folder(3) == copied / "trials" / "00003" / "full"
    assert (ran.study.folder / "optuna.journal").read_bytes() == before


@pytest.mark.slow
def test_the_front_is_confirmed_with_seeds_on_the_test_set(ran: Ran) -> None:
    confirmed = ran.study.confirm(seeds=2)
    front = ran.session.result.front
    assert confirmed.result.name == "tiny.confirm"
    assert confirmed.table["trial"].tolist() == front["trial"].tolist()
    assert set(confirmed.table["seeds"]) == {2}
    assert confirmed.table["test_accuracy"].between(0, 100).all()


@pytest.mark.slow
def test_listed_points_are_confirmed_without_a_search(ran: Ran, tmp_path: Path) -> None:
    fixed = {**TINY, "network.options": {"blocks": 1}}
    points = [{"weight_bits": 1}, {"weight_bits": 2}]
    values = {"name": "table", "trial": fixed, "points": points}
    storage = {"folder": str(tmp_path), "mlflow": "off"}
    study = Study.load({**values, "resources": {"concurrent": 1}, "storage": storage})
    confirmed = study.confirm(seeds=1)
    assert confirmed.table["W/A"].tolist() == ["1/32", "2/32"]
    assert confirmed.result.name == "table.confirm"
    assert not study.exists
