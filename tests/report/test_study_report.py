"""The report of a study: from its folder, from a copy of it, and from exported tables."""

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from slb_autotune.analysis.result import StudyResult, save_result, study_result
from slb_autotune.report.study_report import sentence, write_study_report
from slb_autotune.search.storage import StudyFolder, blank_ledger, open_ledger, read_study
from tests.builders import play, tiny_study


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """A study of ten played trials with histories, read as a real one leaves them."""
    runs = tmp_path_factory.mktemp("runs")
    config = tiny_study(name="played", budget={"trials": 10}, storage={"folder": str(runs)})
    files = StudyFolder(runs, config.name)
    files.path.mkdir(parents=True)
    files.config_path.write_text(config.to_yaml())
    ledger = open_ledger(config, files)
    for number in play(ledger):
        folder = ledger.snapshot().trial_folder(number) / "full"
        folder.mkdir(parents=True)
        rows = [
            {"epoch": e, "val_accuracy": 50.0 + e, "temperature": 10.0**e, "lr": 0.1}
            | {"quantization_gap": 1 / e, "frozen_fraction": 0.1 * e, "flip_rate": 0.01}
            | {"seconds": 1.0}
            for e in range(1, 3)
        ]
        pd.DataFrame(rows).to_csv(folder / "history.csv", index=False)
    return study_result(read_study(runs, "played"))


@pytest.fixture(scope="module")
def page(played: StudyResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study_report(played, tmp_path_factory.mktemp("report"))


def test_a_study_has_a_page_figures_and_tables(
    played: StudyResult, page: Path, tmp_path: Path
) -> None:
    text = page.read_text()
    assert "<title>played" in text
    assert "Which T_e, weight_bits maximize val_accuracy and minimize size_bytes?" in text
    assert "Best schedule:" in text
    assert f"slb-autotune search {played.folder}/study.yaml --name played-again" in text
    assert f"slb-autotune train played:{played.front['trial'].iloc[-1]}" in text
    names = {path.name for path in (page.parent / "figures").iterdir()}
    assert {"front.png", "front.svg", "bits.svg", "schedules.png", "importance.svg"} <= names
    assert (page.parent / "tables" / "front.md").read_text().count("played") >= 1
    again = write_study_report(played, tmp_path)
    assert again.read_bytes() == page.read_bytes()


def test_a_page_shows_one_hypervolume(played: StudyResult, page: Path) -> None:
    shown = f"{played.hypervolume:.4f}"
    assert f"Hypervolume {shown} against the reference point" in page.read_text()
    table = (page.parent / "tables" / "uniform.md").read_text()
    assert re.search(rf"\| +{shown} \|", table)


def test_exported_tables_give_the_same_figures_without_torch_and_ray(
    played: StudyResult, page: Path, tmp_path: Path
) -> None:
    save_result(played, tmp_path, "played.")
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from slb_autotune.analysis.result import load_result\n"
        "from slb_autotune.report.study_report import write_study_report\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "print(write_study_report(load_result(folder, 'played.'), folder / 'report'))\n"
        "heavy = {'torch', 'ray', 'mlflow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    exported = Path(done.stdout.strip())
    for path in (page.parent / "figures").glob("*.png"):
        same = exported.parent / "figures" / path.name
        assert same.read_bytes() == path.read_bytes(), path.name
    assert 'id="reproduce"' in page.read_text()
    assert 'id="reproduce"' not in exported.read_text(), "there is no study file to name"


def test_a_study_without_trials_has_a_page_too(tmp_path: Path) -> None:
    ledger = blank_ledger(tiny_study(name="empty", storage={"folder": str(tmp_path)}))
    page = write_study_report(study_result(ledger.snapshot()), tmp_path / "report")
    assert "No trial has ended yet." in page.read_text()
    assert "no trials; 0 infeasible draws; 0 epochs in all" in page.read_text()


def test_a_line_becomes_a_sentence() -> None:
    assert sentence("best schedule: exp") == "Best schedule: exp."
