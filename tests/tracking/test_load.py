"""What MLflow was told comes back as tables."""

from __future__ import annotations

import pandas as pd
import pytest

from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS, typed
from slb_autotune.errors import InputError, SlbError
from slb_autotune.tracking import load_epochs, load_runs
from tests.tracking.told import HISTORY, entry, free_port, record


def test_runs_come_back_typed_and_whole(runs_folder, monkeypatch):
    monkeypatch.setattr("slb_autotune.tracking.store.PAGE", 2)
    statuses = ["done", "stopped", "failed", "running", "reused"]
    trials = [entry(runs_folder, n, s) for n, s in enumerate(statuses)]
    tracker = record(runs_folder, trials)
    frame = load_runs("tiny", runs_folder=runs_folder)
    assert list(frame.columns) == list(RUN_COLUMNS)
    assert (
        frame.dtypes.astype("str").tolist() == typed([], RUN_COLUMNS).dtypes.astype("str").tolist()
    )
    assert frame["trial"].tolist() == [0, 1, 2, 3, 4]
    assert frame["status"].tolist() == statuses
    assert frame["run_id"].tolist() == [tracker.run_ids[n] for n in range(5)]
    assert frame["T_e"].tolist() == [100.0, 101.0, 102.0, 103.0, 104.0]
    assert frame["lr"].tolist() == [0.1] * 5
    assert frame["size_bytes"].dropna().tolist() == [1000, 1001, 1002, 1004]
    assert frame["command"][1] == "slb-autotune train tiny:1"
    # A trial that did not finish has no result, however good its last epoch was.
    assert frame["val_accuracy"].isna().tolist() == [False, True, True, True, False]
    assert frame["val_accuracy"][0] == 10 + 4 / 3
    assert frame["seconds"][0] == 2.5
    assert frame["epochs_spent"].dropna().tolist() == [6, 2, 2, 6]
    assert frame["train_images"][0] == 64


def test_epochs_come_back_as_the_folders_have_them(runs_folder):
    trials = [entry(runs_folder, n, s) for n, s in enumerate(["done", "running", "reused"])]
    record(runs_folder, trials)
    frame = load_epochs("tiny", runs_folder=runs_folder)
    assert list(frame.columns) == list(EPOCH_COLUMNS)
    assert frame["trial"].tolist() == [0] * 6 + [1] * 5
    assert frame["rung"].tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1]
    for number in (0, 1):
        mine = frame[frame["trial"] == number]
        parts = [pd.read_csv(trials[number].folder / n / "history.csv") for n in ("rung0", "full")]
        wanted = pd.concat(parts)
        for name in HISTORY.split(","):
            assert mine[name].tolist() == pytest.approx(wanted[name].tolist(), rel=1e-15), name


def test_all_studies_or_one(runs_folder):
    record(runs_folder, [entry(runs_folder, 0)])
    assert len(load_runs(runs_folder=runs_folder)) == 1
    with pytest.raises(InputError, match=r"no study 'tinny' Hint: did you mean 'tiny'"):
        load_runs("tinny", runs_folder=runs_folder)


def test_reading_where_nothing_is_says_so_and_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(InputError, match="nothing is recorded"):
        load_runs(runs_folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SlbError, match=r"MLflow at 127.0.0.1:\d+ cannot be read"):
        load_runs(uri=f"http://127.0.0.1:{free_port()}")
