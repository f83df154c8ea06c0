from __future__ import annotations

from slb_autotune.training.history import read_history, staged_epochs
from slb_autotune.training.run_folder import RunFolder


def test_a_history_is_read_bit_exact_without_blank_cells(tmp_path):
    folder = RunFolder(tmp_path / "run")
    rows = [{"epoch": 1, "train_loss": 0.1 + 0.2}, {"epoch": 2, "train_loss": 1 / 3, "lr": 1e-300}]
    folder.path.mkdir()
    folder.save_tables({"history": rows})
    assert read_history(folder.history_path) == rows
    assert read_history(tmp_path / "nothing.csv") == []


def test_stages_in_one_folder_continue_each_other(tmp_path):
    for name, epochs in (("rung0", 2), ("full", 4)):
        run = RunFolder(tmp_path / name)
        run.path.mkdir()
        run.save_tables({"history": [{"epoch": e} for e in range(1, epochs + 1)]})
    stages = [("rung0", 2), ("full", 1), ("full", 3), ("full", 4), ("missing", 9)]
    found = [(row["rung"], row["epoch"]) for row in staged_epochs(tmp_path, stages)]
    assert found == [(0, 1), (0, 2), (1, 1), (2, 2), (2, 3), (3, 4)]
