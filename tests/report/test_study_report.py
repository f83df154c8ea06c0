"""The report of a study, and the results that `slb-autotune report` makes anew."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from slb_autotune.analysis.frames import epoch_frame, run_frame
from typer.testing import CliRunner

from slb_autotune.cli.main import app
from slb_autotune.errors import DataError
from slb_autotune.report.results import export_tables, read_results, regenerate
from slb_autotune.report.study_report import sentence, write_study_report
from slb_autotune.search.ledger import Ledger
from slb_autotune.search.storage import StudyFolder, open_ledger
from tests.builders import play, tiny_study

PAPER = Path(__file__).parents[2] / "results" / "paper"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A study of ten played trials with histories, as a real one leaves them."""
    runs = tmp_path_factory.mktemp("runs")
    config = tiny_study(name="played", budget={"trials": 10}, storage={"folder": str(runs)})
    files = StudyFolder(runs, config.name)
    files.path.mkdir(parents=True)
    files.config_path.write_text(config.to_yaml())
    ledger = open_ledger(config, files)
    for number in play(ledger):
        folder = ledger.trial_folder(number) / "full"
        folder.mkdir(parents=True)
        rows = [
            {"epoch": e, "val_accuracy": 50.0 + e, "temperature": 10.0**e, "lr": 0.1}
            | {"quantization_gap": 1 / e, "frozen_fraction": 0.1 * e, "flip_rate": 0.01}
            | {"seconds": 1.0}
            for e in range(1, 3)
        ]
        pd.DataFrame(rows).to_csv(folder / "history.csv", index=False)
    return ledger


def test_a_study_has_a_page_figures_and_tables(ledger: Ledger, tmp_path: Path) -> None:
    page = write_study_report(ledger, tmp_path / "report")
    text = page.read_text()
    assert "<title>" in text
    assert "played" in text
    assert "Which T_e, weight_bits maximize val_accuracy and minimize size_bytes?" in text
    assert "Best schedule:" in text
    names = {path.name for path in (tmp_path / "report" / "figures").iterdir()}
    assert {"front.png", "front.svg", "bits.svg", "schedules.png", "importance.svg"} <= names
    assert (tmp_path / "report" / "tables" / "front.md").read_text().count("played") >= 1
    again = write_study_report(ledger, tmp_path / "again")
    assert again.read_bytes() == page.read_bytes()


def test_a_study_without_trials_has_a_page_too(tmp_path: Path) -> None:
    config = tiny_study(name="empty", storage={"folder": str(tmp_path)})
    files = StudyFolder(tmp_path, "empty")
    files.path.mkdir(parents=True)
    page = write_study_report(open_ledger(config, files), tmp_path / "report")
    assert "No trial has ended yet." in page.read_text()


def test_the_command_writes_the_page_and_the_tables(ledger: Ledger, tmp_path: Path) -> None:
    runs = str(Path(ledger.config.storage.folder))
    told = CliRunner().invoke(app, ["report", "played", "--runs", runs, "--json"])
    assert told.exit_code == 0, told.output
    assert Path(json.loads(told.stdout)["page"]).exists()
    to = tmp_path / "results" / "runs"
    told = CliRunner().invoke(app, ["export", "played", "--runs", runs, "--to", str(to)])
    assert told.exit_code == 0, told.output
    assert sorted(path.name for path in to.iterdir()) == [
        "played.epochs.csv",
        "played.runs.csv",
    ]
    shutil.copytree(PAPER, tmp_path / "results" / "paper")
    told = CliRunner().invoke(app, ["report", "--results", str(tmp_path / "results")])
    assert told.exit_code == 0, told.output
    assert "not run" in told.stdout


def test_results_are_made_anew_byte_by_byte(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no measurements"):
        read_results(tmp_path / "runs")
    export_tables(run_frame(ledger), epoch_frame(ledger), "played", tmp_path / "runs")
    shutil.copytree(PAPER, tmp_path / "paper")
    regenerate(tmp_path)
    first = {
        path: path.read_bytes()
        for folder in ("tables", "figures")
        for path in (tmp_path / folder).iterdir()
        if path.suffix != ".png"
    }
    assert any(re.match(r"played_front\.svg", path.name) for path in first)
    regenerate(tmp_path)
    assert {path: path.read_bytes() for path in first} == first


def test_a_line_becomes_a_sentence() -> None:
    assert sentence("best schedule: exp") == "Best schedule: exp."
