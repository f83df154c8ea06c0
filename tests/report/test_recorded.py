"""What MLflow is given of a study's report."""

import logging
import sys
from pathlib import Path

import pandas as pd
import pytest

from slb_autotune.report.recorded import importance_text, recorded_files
from slb_autotune.report.study_report import write_study_report
from slb_autotune.search.ledger import Ledger
from slb_autotune.search.storage import blank_ledger
from tests.builders import play, tiny_study


def played(runs: Path, trials: int) -> Ledger:
    config = tiny_study(budget={"trials": trials}, storage={"folder": str(runs)})
    ledger = blank_ledger(config)
    play(ledger)
    return ledger


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ledger, Path]:
    """A study of ten played trials, and its page."""
    folder = tmp_path_factory.mktemp("runs")
    ledger = played(folder, 10)
    return ledger, write_study_report(ledger, folder / "report")


def names(paths: list[Path]) -> set[str]:
    assert all(path.stat().st_size for path in paths)
    return {path.name for path in paths}


def test_without_plotly_the_rest_is_given_and_that_is_told(
    study: tuple[Ledger, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.io", None)
    given = names(recorded_files(*study))
    assert {"index.html", "front.png", "importance.csv"} <= given
    assert "interactive.html" not in given
    (told,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert told.startswith("plotly is not installed")


def test_the_page_the_plots_and_the_importances_are_given(study: tuple[Ledger, Path]) -> None:
    pytest.importorskip("plotly")
    ledger, page = study
    wanted = {"index.html", "front.png", "hypervolume.png", "importance.png", "importance.csv"}
    assert wanted | {"interactive.html"} <= names(recorded_files(ledger, page))
    shares = pd.read_csv(page.with_name("importance.csv"), index_col="parameter")
    assert list(shares.columns) == ["val_accuracy", "size_bytes"]
    assert set(shares.index) == {name for r in ledger.records.values() for name in r.params}
    text = page.with_name("interactive.html").read_text()
    assert text.count("Plotly.newPlot(") == 2
    assert "<script src=" not in text  # nothing is asked of the network
    assert 'id="front"' in text
    assert "trial 9" in text


def test_few_trials_have_no_importances(tmp_path: Path) -> None:
    assert importance_text(played(tmp_path, 3)) == ""
