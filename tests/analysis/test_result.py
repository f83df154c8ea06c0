"""A study as plain tables: one row per trial and per epoch, saved, loaded and kept current."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from slb_autotune.analysis.result import (
    StudyResult,
    current_result,
    load_result,
    save_result,
    study_result,
)
from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS
from slb_autotune.errors import DataError, InputError
from slb_autotune.search.ledger import Ledger
from slb_autotune.search.storage import StudyFolder, blank_ledger, open_ledger
from tests.builders import TINY, play, tiny_study


def history(path: Path, epochs: int, offset: float) -> None:
    path.mkdir(parents=True)
    rows = [
        {"epoch": e, "val_accuracy": offset + e, "temperature": 1.0, "lr": 0.1, "seconds": 0.5}
        for e in range(1, epochs + 1)
    ]
    pd.DataFrame(rows).to_csv(path / "history.csv", index=False)


def on_disk(runs: Path, **changes: Any) -> Ledger:
    """A study of some finished trials in a run folder."""
    config = tiny_study(storage={"folder": str(runs), "mlflow": "off"}, **changes)
    files = StudyFolder(runs, config.name)
    files.path.mkdir(parents=True, exist_ok=True)
    files.config_path.write_text(config.to_yaml())
    return open_ledger(config, files)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    ledger = on_disk(folder, budget={"trials": 8}, constraints=["val_accuracy >= 82"])
    play(ledger)
    for number in ledger.records:
        history(ledger.snapshot().trial_folder(number) / "full", 1, float(number))
    return folder


def same(one: StudyResult, other: StudyResult) -> None:
    pd.testing.assert_frame_equal(one.trials, other.trials)
    pd.testing.assert_frame_equal(one.epochs, other.epochs)
    assert one.objectives == other.objectives
    assert (one.reference, one.hypervolume) == (other.reference, other.hypervolume)
    assert (one.infeasible, one.sessions) == (other.infeasible, other.sessions)


def test_one_row_per_trial(tmp_path: Path) -> None:
    ledger = blank_ledger(tiny_study(storage={"folder": str(tmp_path)}, budget={"trials": 5}))
    play(ledger)
    study = ledger.snapshot()
    result = study_result(study)
    trials = result.trials
    assert {name: str(dtype) for name, dtype in trials.dtypes.items()} == RUN_COLUMNS
    assert trials["trial"].tolist() == list(ledger.records)
    assert result.front["trial"].tolist() == [record.number for record in study.front()]
    assert result.hypervolume == study.hypervolume()
    for row, record in zip(trials.itertuples(), ledger.records.values(), strict=True):
        assert row.val_accuracy == record.metrics["val_accuracy"]
        assert row.T_e == record.config.temperature.T_e
        assert json.loads(str(row.params)) == record.params
        assert json.loads(str(row.bits)) == record.bits
        assert row.digest == record.config.digest
        assert result.config_of(record.number) == record.config


def test_a_trial_s_provenance_is_what_its_worker_recorded(tmp_path: Path) -> None:
    ledger = blank_ledger(tiny_study(storage={"folder": str(tmp_path)}, budget={"trials": 2}))
    play(ledger)
    ran_on = {
        **{"version": "0.0", "torch": "2.0", "machine": "Linux riscv64, U74"},
        **{"device": "cuda:1 (Test GPU)", "threads": 7, "precision": "bf16"},
    }
    records = {n: replace(r, ran_on=ran_on) for n, r in ledger.records.items()}
    result = study_result(replace(ledger.snapshot(), records=records))
    for name, value in ran_on.items():
        assert result.trials[name].tolist() == [value] * 2
    assert result.provenance()["device"] == ["cuda:1 (Test GPU)"]


def test_a_stopped_or_failed_trial_has_its_costs(tmp_path: Path) -> None:
    ledger = blank_ledger(tiny_study(storage={"folder": str(tmp_path)}))
    number, assignment = ledger.ask() or pytest.fail("no trial")
    ledger.tell_failed(number, "the loss became nan")
    row = study_result(ledger.snapshot()).trial(number)
    assert (row["status"], row["reason"]) == ("failed", "the loss became nan")
    assert row["size_bytes"] == assignment.costs["size_bytes"]
    assert pd.isna(row["val_accuracy"])


@pytest.mark.parametrize("budget", ["compressed", "prefix"])
def test_an_epoch_says_to_which_rung_it_belongs(tmp_path: Path, budget: str) -> None:
    config = tiny_study(
        storage={"folder": str(tmp_path)},
        trial={**TINY, "epochs": 4},
        early_stopping={"rungs": [0.25, 0.5], "budget": budget},
        budget={"trials": 1},
    )
    ledger = blank_ledger(config)
    (number,) = play(ledger)
    folder = ledger.snapshot().trial_folder(number)
    if budget == "compressed":
        history(folder / "rung0", 1, 10)
        history(folder / "rung1", 2, 20)
    history(folder / "full", 4, 30)
    epochs = study_result(ledger.snapshot()).epochs
    assert {name: str(dtype) for name, dtype in epochs.dtypes.items()} == EPOCH_COLUMNS
    found = list(zip(epochs["rung"], epochs["epoch"], epochs["val_accuracy"], strict=True))
    full = [(e, 30.0 + e) for e in range(1, 5)]
    if budget == "compressed":
        small = [(0, 1, 11.0), (1, 1, 21.0), (1, 2, 22.0)]
        assert found == [*small, *((2, *row) for row in full)]
    else:
        assert found == [(0, *full[0]), (1, *full[1]), (2, *full[2]), (2, *full[3])]


def test_a_study_without_trials_gives_empty_tables(tmp_path: Path) -> None:
    ledger = blank_ledger(tiny_study(storage={"folder": str(tmp_path)}))
    result = study_result(ledger.snapshot())
    assert result.trials.empty
    assert result.epochs.empty
    assert result.front.empty
    assert result.best() is None
    save_result(result, tmp_path / "saved")
    same(load_result(tmp_path / "saved"), result)


def test_saved_and_loaded_it_is_the_same(runs: Path, tmp_path: Path) -> None:
    result = current_result(runs, "tiny")
    paths = save_result(result, tmp_path, "tiny.")
    assert [path.name for path in paths] == ["tiny.study.json", "tiny.runs.csv", "tiny.epochs.csv"]
    loaded = load_result(tmp_path, "tiny.")
    same(loaded, result)
    assert loaded.folder is None
    assert loaded.config_of(3) == result.config_of(3)


def test_results_meet_the_constraints(runs: Path) -> None:
    result = current_result(runs, "tiny")
    assert len(result.results) < len(result.trials)
    assert (result.results["val_accuracy"] >= 82).all()
    assert set(result.front["trial"]) <= set(result.results["trial"])
    best = result.best()
    assert best is not None
    assert best["val_accuracy"] == result.results["val_accuracy"].max()
    assert result.hypervolume_of(result.results) == pytest.approx(result.hypervolume)


def test_nothing_of_this_machine_is_exported(tmp_path: Path) -> None:
    config = tiny_study(
        trial={**TINY, "data.root": "/home/me/data"},
        space={},
        points=[{"data": {"root": "/home/me/data"}}],
        storage={"folder": str(tmp_path / "runs"), "optuna": "postgresql://me:secret@db/s"},
    )
    result = replace(
        study_result(blank_ledger(tiny_study()).snapshot([{"pid": 77, "seconds": 1.0}])),
        config=config,
    )
    (path, *_) = save_result(result, tmp_path)
    text = path.read_text()
    assert not any(word in text for word in ("secret", "/home/me", str(tmp_path), "77"))


def test_a_saved_result_is_used_while_nothing_was_added(runs: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(runs, tmp_path / "copy")
    first = current_result(copy, "tiny")
    folder = copy / "studies" / "tiny" / "result"
    assert not folder.exists()  # a reader saves nothing
    save_result(first, folder)
    saved = folder / "runs.csv"
    saved.write_text(saved.read_text().replace(",done,", ",failed,"))
    assert len(current_result(copy, "tiny").with_status("failed")) > 0  # read from the tables
    files = StudyFolder(copy, "tiny")
    ledger = open_ledger(tiny_study(storage={"folder": str(copy)}, budget={"trials": 9}), files)
    play(ledger)
    grown = current_result(copy, "tiny")
    assert len(grown.trials) == len(first.trials) + 1
    assert len(grown.with_status("failed")) == 0


def test_a_copied_folder_is_read_without_ray_optuna_or_torch(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "elsewhere")
    result = current_result(tmp_path / "elsewhere", "tiny")
    save_result(result, tmp_path / "elsewhere" / "studies" / "tiny" / "result")
    code = """
import sys
from pathlib import Path
from slb_autotune.analysis.result import current_result

result = current_result(Path(sys.argv[1]), "tiny")
print(len(result.trials), *(name for name in ("ray", "optuna", "torch") if name in sys.modules))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "elsewhere")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert ended.stdout.split() == ["8"]


def test_a_copy_without_its_storage_has_what_was_saved_last(runs: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(runs, tmp_path / "copy")
    folder = copy / "studies" / "tiny"
    whole = current_result(copy, "tiny")
    save_result(whole, folder / "result")
    (folder / "optuna.journal").unlink()
    same(current_result(copy, "tiny"), whole)
    assert not (folder / "optuna.journal").exists()
    shutil.rmtree(folder / "result")
    with pytest.raises(InputError, match="study 'tiny' has no journal"):
        current_result(copy, "tiny")


def test_a_study_of_an_earlier_version_is_one_sentence(tmp_path: Path) -> None:
    ledger = on_disk(tmp_path)
    trial = ledger.study.ask()
    trial.set_user_attr("config", {})
    trial.set_user_attr("status", "running")
    with pytest.raises(InputError, match="the study was run by an earlier version"):
        current_result(tmp_path, "tiny")


def test_what_is_not_there_is_named(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no study 'tinny'") as caught:
        current_result(runs, "tinny")
    assert caught.value.hint == "did you mean 'tiny'?"
    with pytest.raises(InputError, match="study 'tiny' has no trial 99"):
        current_result(runs, "tiny").trial(99)
    with pytest.raises(DataError, match=r"there is no .*study\.json"):
        load_result(tmp_path)
    (tmp_path / "study.json").write_text('{"format": 99}')
    with pytest.raises(DataError, match="it has format 99, not 1"):
        load_result(tmp_path)
