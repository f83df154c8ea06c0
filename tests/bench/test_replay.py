"""Searches replayed on a table: what they are told is what the table says, and what it costs."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS, typed, write
from slb_autotune.bench import replay
from slb_autotune.bench.replay import Spent, Truth, epochs_needed
from slb_autotune.config.study import StudyConfig
from slb_autotune.errors import DataError
from tests.builders import TINY

EPOCHS = 4
BITS = (1, 2, 4)
T_ES = (10.0, 100.0, 1000.0)
LRS = (0.05, 0.2)


def study(**changes: object) -> StudyConfig:
    values = {
        "name": "digits_truth",
        "trial": {**TINY, "epochs": EPOCHS},
        "space": {"weight_bits": list(BITS), "T_e": list(T_ES), "lr": list(LRS)},
        "budget": {"trials": 10_000},
    }
    return StudyConfig.from_mapping({**values, **changes})


def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """An invented truth: more bits and T_e = 100 are better; every run climbs to its end."""
    runs, epochs = [], []
    for trial, (bits, T_e, lr) in enumerate(product(BITS, T_ES, LRS)):
        best = 90 + bits - 5 * abs(np.log10(T_e) - 2) - 10 * lr
        params = {"weight_bits/*": bits, "temperature.T_e": T_e, "optimizer.lr": lr}
        row = {"trial": trial, "status": "done", "epochs": EPOCHS, "size_bytes": 1000 * bits}
        runs.append({**row, "params": json.dumps(params)})
        for rung, length in enumerate((1, 2, EPOCHS)):
            epochs += [
                {"trial": trial, "rung": rung, "epoch": e, "val_accuracy": best - length + e}
                for e in range(1, length + 1)
            ]
    return typed(runs, RUN_COLUMNS), typed(epochs, EPOCH_COLUMNS)


@pytest.fixture(scope="module")
def truth() -> Truth:
    return Truth(*tables())


def test_the_truth_has_its_front_and_its_volume(truth: Truth) -> None:
    best = [(90 + bits - 0.5, 1000.0 * bits) for bits in BITS]
    assert sorted(map(tuple, truth.members.tolist())) == sorted(best)
    # Three boxes under a staircase, by hand; the reference is a tenth of the span beyond.
    low, far = 90.5 - 0.3, 4000 + 300
    areas = (90.5 - low) * (far - 1000) + 1.0 * (far - 2000) + 2.0 * (far - 4000)
    assert truth.volume == pytest.approx(areas)
    assert truth.reached(best) == pytest.approx(1.0)
    assert truth.reached([]) == 0
    assert truth.reached(best[:1]) == pytest.approx((90.5 - low) * (far - 1000) / areas)


def test_it_is_read_from_two_files(truth: Truth, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no table of the truth"):
        Truth.read(tmp_path)
    runs, epochs = tables()
    write(runs, tmp_path / "digits_truth.runs.csv")
    write(epochs, tmp_path / "digits_truth.epochs.csv")
    again = Truth.read(tmp_path)
    assert again.volume == truth.volume
    assert again.keys == truth.keys


@pytest.mark.parametrize(("budget", "through"), [("prefix", 4), ("compressed", 1 + 2 + 4)])
def test_a_trial_costs_the_epochs_of_its_rungs(truth: Truth, budget: str, through: int) -> None:
    stopping = {"rungs": [0.25, 0.5], "budget": budget, "spared": 0.0}
    steps = list(replay.ours(truth, study(early_stopping=stopping), seed=0))
    costs = np.diff([0, *(step.epochs for step in steps)])
    finished = [cost for cost, step in zip(costs, steps, strict=True) if step.result]
    stopped = [cost for cost, step in zip(costs, steps, strict=True) if not step.result]
    assert set(finished) == {through}
    assert stopped
    assert set(stopped) <= {1, 2 if budget == "prefix" else 1 + 2}
    assert len(steps) == len(truth.keys)  # nothing is trained twice


def test_what_goes_through_the_space_finds_the_front_in_the_end(truth: Truth) -> None:
    everything = EPOCHS * len(truth.keys)
    for name, search in replay.SEARCHES.items():
        needed = epochs_needed(truth, search(truth, study(), 0), 1.0 - 1e-9)
        assert needed >= 3 * EPOCHS, name
        if name in ("grid", "ours"):  # others may draw the same again and again
            assert needed <= everything, name


def test_epochs_needed_counts_until_the_share_is_reached(truth: Truth) -> None:
    best = [truth.result(trial) for trial in truth.keys.values()]
    members = [tuple(member) for member in truth.members.tolist()]
    search = [Spent(3, None), Spent(7, members[0]), Spent(9, min(best)), Spent(20, members[1])]
    search += [Spent(33, members[2])]
    assert epochs_needed(truth, iter(search), 0.999) == 33
    assert epochs_needed(truth, iter(search[:4]), 0.999) == float("inf")


def test_the_comparison_is_over_seeds(truth: Truth) -> None:
    table = replay.compare(truth, study(), seeds=2).set_index("search")
    assert list(table.index) == list(replay.SEARCHES)
    plain = table.loc["plain OptunaSearch", "epochs"]
    assert table.loc["ours", "of_plain"] == table.loc["ours", "epochs"] / plain
    assert (table["low"] <= table["epochs"]).all()
    assert (table["epochs"] <= table["high"]).all()
    assert (table.loc[["grid", "ours"], "never"] == 0).all()


def test_correlations_are_of_both_ways_to_spend_a_budget(truth: Truth) -> None:
    table = replay.rung_correlations(truth)
    assert table["budget"].tolist() == ["prefix", "compressed"] * 2
    assert table["epochs"].tolist() == [1, 1, 2, 2]
    assert table["spearman"].tolist() == pytest.approx([1.0] * 4)  # invented curves never cross


def test_the_default_study_keeps_the_space_and_drops_the_rest() -> None:
    path = Path(__file__).parents[2] / "search_spaces" / "digits_truth.yaml"
    config = replay.default_study(path)
    usual = StudyConfig.from_mapping({"name": "x", "recipe": "digits", "space": {"lr": [0.1]}})
    assert config.sampler == usual.sampler
    assert config.early_stopping == usual.early_stopping
    assert config.space == StudyConfig.from_file(path).space
