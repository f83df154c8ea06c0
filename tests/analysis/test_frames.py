"""A study as tables: one row a trial, one row an epoch, of every rung."""

import json
from pathlib import Path

import pandas as pd
import pytest

from slb_autotune.analysis.frames import epoch_frame, run_frame
from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS
from slb_autotune.search.storage import blank_ledger
from tests.builders import play, tiny_study


def history(path: Path, epochs: int, offset: float) -> None:
    path.mkdir(parents=True)
    rows = [
        {"epoch": e, "val_accuracy": offset + e, "temperature": 1.0, "lr": 0.1, "seconds": 0.5}
        for e in range(1, epochs + 1)
    ]
    pd.DataFrame(rows).to_csv(path / "history.csv", index=False)


def test_a_row_for_every_trial(tmp_path: Path) -> None:
    ledger = blank_ledger(tiny_study(storage={"folder": str(tmp_path)}, budget={"trials": 5}))
    play(ledger)
    runs = run_frame(ledger)
    assert {name: str(dtype) for name, dtype in runs.dtypes.items()} == RUN_COLUMNS
    assert runs["trial"].tolist() == list(ledger.records)
    assert runs.loc[runs["on_front"], "trial"].tolist() == sorted(
        record.number for record in ledger.front()
    )
    for row, record in zip(runs.itertuples(), ledger.records.values(), strict=True):
        assert row.val_accuracy == record.metrics["val_accuracy"]
        assert row.T_e == record.config.temperature.T_e
        assert json.loads(str(row.params)) == record.params
        bits = json.loads(str(row.bits))
        assert list(bits) == ledger.layers
        stages = {name: bits[name] for name in ledger.layers}
        wanted = record.config.weight_bits
        assert isinstance(wanted, dict)
        assert all(
            wanted[pattern] == stages[name]
            for name in stages
            for pattern in wanted
            if name.startswith(pattern.removesuffix("*"))
        )


@pytest.mark.parametrize("budget", ["compressed", "prefix"])
def test_an_epoch_says_to_which_rung_it_belongs(tmp_path: Path, budget: str) -> None:
    config = tiny_study(
        storage={"folder": str(tmp_path)},
        trial={**tiny_study().trial, "epochs": 4},
        early_stopping={"rungs": [0.25, 0.5], "budget": budget},
        budget={"trials": 1},
    )
    ledger = blank_ledger(config)
    (number,) = play(ledger)
    folder = ledger.trial_folder(number)
    if budget == "compressed":
        history(folder / "rung0", 1, 10)
        history(folder / "rung1", 2, 20)
    history(folder / "full", 4, 30)
    epochs = epoch_frame(ledger)
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
    assert run_frame(ledger).empty
    assert epoch_frame(ledger).empty
