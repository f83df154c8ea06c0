"""The files of a report that MLflow records."""

import json
import logging
import sys
from pathlib import Path

import pandas as pd
import pytest

from slb_autotune.analysis.result import StudyResult, study_result
from slb_autotune.report.recorded import importance_text, recorded_files
from slb_autotune.report.study_report import write_study_report
from slb_autotune.search.storage import blank_ledger
from tests.builders import play, tiny_study


def played(runs: Path, trials: int) -> StudyResult:
    config = tiny_study(budget={"trials": trials}, storage={"folder": str(runs)})
    ledger = blank_ledger(config)
    play(ledger)
    return study_result(ledger.snapshot())


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyResult, Path]:
    """A study of ten played trials, and its page."""
    folder = tmp_path_factory.mktemp("runs")
    result = played(folder, 10)
    return result, write_study_report(result, folder / "report")


def names(paths: list[Path]) -> set[str]:
    assert all(path.stat().st_size for path in paths)
    return {path.name for path in paths}


def test_without_plotly_the_rest_is_given_with_a_warning(
    study: tuple[StudyResult, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.io", None)
    given = names(recorded_files(*study))
    assert {"index.html", "front.png", "importance.csv"} <= given
    assert "interactive.html" not in given
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert warning.startswith("plotly is not installed")


def test_the_page_the_plots_and_the_importances_are_given(study: tuple[StudyResult, Path]) -> None:
    pytest.importorskip("plotly")
    result, page = study
    wanted = {"index.html", "front.png", "hypervolume.png", "importance.png", "importance.csv"}
    assert wanted | {"interactive.html"} <= names(recorded_files(result, page))
    shares = pd.read_csv(page.with_name("importance.csv"), index_col="parameter")
    assert list(shares.columns) == ["val_accuracy", "size_bytes"]
    assert set(shares.index) == {
        name for cell in result.trials["params"] for name in json.loads(cell)
    }
    text = page.with_name("interactive.html").read_text()
    assert text.count("Plotly.newPlot(") == 2
    assert "<script src=" not in text  # nothing is asked of the network
    assert 'id="front"' in text
    assert "trial 9" in text


def test_few_trials_have_no_importances(tmp_path: Path) -> None:
    assert importance_text(played(tmp_path, 3)) == ""
