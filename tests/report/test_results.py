"""`results/tables` and `results/figures` from exported studies."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slb_autotune.analysis.result import StudyResult, load_result, save_result
from slb_autotune.cli.main import app
from slb_autotune.errors import DataError
from slb_autotune.report.results import read_results, regenerate

RESULTS = Path(__file__).parents[2] / "results"


def test_results_are_regenerated_byte_by_byte(study: StudyResult, tmp_path: Path) -> None:
    save_result(study, tmp_path / "runs", f"{study.name}.")
    shutil.copytree(RESULTS / "paper", tmp_path / "paper")
    regenerate(tmp_path)
    folders = ("tables", "figures")
    first = {path: path.read_bytes() for name in folders for path in (tmp_path / name).iterdir()}
    names = {path.name for path in first if path.parent.name == "figures"}
    assert names == {f"invented_{name}.png" for name in ("front", "schedules", "budgets")}
    regenerate(tmp_path)
    assert {path: path.read_bytes() for path in first} == first


def test_a_folder_without_studies_says_how_to_export_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no measurements .*slb-autotune export NAME"):
        read_results(tmp_path)


def test_runs_without_their_study_are_to_be_exported_again(
    study: StudyResult, tmp_path: Path
) -> None:
    path = save_result(study, tmp_path, "invented.")[0]
    assert [result.name for result in read_results(tmp_path)] == ["invented"]
    path.unlink()
    with pytest.raises(DataError, match=r"there is no .*study\.json Hint: export the study again"):
        read_results(tmp_path)


def test_the_committed_tables_are_those_of_the_committed_runs(tmp_path: Path) -> None:
    for name in ("runs", "paper"):
        shutil.copytree(RESULTS / name, tmp_path / name)
    regenerate(tmp_path)
    written = {path.name: path.read_text() for path in (tmp_path / "tables").iterdir()}
    assert written == {path.name: path.read_text() for path in (RESULTS / "tables").iterdir()}


COMMITTED = sorted(path.name.removesuffix(".runs.csv") for path in RESULTS.glob("runs/*.runs.csv"))


@pytest.mark.parametrize("name", COMMITTED)
def test_a_committed_study_has_its_own_hypervolume_and_nothing_of_a_machine(name: str) -> None:
    result = load_result(RESULTS / "runs", f"{name}.")
    assert result.name == name
    assert set(result.trials["study"]) == {result.name}
    assert result.hypervolume_of(result.results) == pytest.approx(result.hypervolume)
    assert len(result.reference) == len(result.objectives.metrics)
    assert result.base.data.root is None
    assert "storage" not in result.config.to_mapping()


def test_the_command_regenerates_the_results(study: StudyResult, tmp_path: Path) -> None:
    save_result(study, tmp_path / "runs", f"{study.name}.")
    shutil.copytree(RESULTS / "paper", tmp_path / "paper")
    done = CliRunner().invoke(app, ["report", "--results", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "not run" in done.stdout
    assert (tmp_path / "tables" / "front.md").read_text() in done.stdout
