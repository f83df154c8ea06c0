"""What comparisons of runs are built from."""

from __future__ import annotations

import math
import statistics

import pytest

from slb_autotune.analysis.comparisons import mean_and_spread, one_per_seed, records, run_names
from slb_autotune.analysis.tables import RUN_COLUMNS, typed


def test_mean_and_spread_are_the_textbooks():
    values = [78.1, 77.9, 78.2]
    mean, spread = mean_and_spread(values)
    assert mean == pytest.approx(sum(values) / 3)
    slow = math.sqrt(sum((value - sum(values) / 3) ** 2 for value in values) / 2)
    assert spread == pytest.approx(slow) == pytest.approx(statistics.stdev(values))
    assert mean_and_spread([78.1]) == (78.1, None)
    assert mean_and_spread([]) == (None, None)


def test_records_have_none_for_what_is_missing_and_leave_unfinished_runs_out():
    rows = [
        {"study": "b", "trial": 1, "status": "done", "val_accuracy": float("inf"), "seed": 1},
        {"study": "a", "trial": 2, "status": "reused", "params": '{"seed": 3, "data.scale": 2}'},
        {"study": "a", "trial": 0, "status": "stopped", "val_accuracy": 50.0},
    ]
    first, second = records(typed(rows, RUN_COLUMNS))
    assert (first["study"], first["trial"], first["scale"]) == ("a", 2, 2)
    assert first["params"] == {"data.scale": 2}
    assert (second["val_accuracy"], second["network"], second["size_bytes"]) == (None, None, None)


def test_a_seed_counts_once_and_unknown_seeds_each():
    runs = [
        {"seed": 0, "n": 1},
        {"seed": 0, "n": 2},
        {"seed": None, "n": 3},
        {"seed": None, "n": 4},
    ]
    assert [run["n"] for run in one_per_seed(runs)] == [1, 3, 4]


def test_a_run_without_a_study_has_a_name_too():
    run = {"run_id": None, "study": None, "trial": None}
    assert run_names([run]) == "no study:?"
