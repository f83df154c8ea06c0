"""Small budgets against the end."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from slb_autotune.analysis.budgets import budget_correlations, final_curves
from tests.report.figures.runs import invented_epochs, invented_runs


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return invented_runs()


@pytest.mark.parametrize("compressed", [False, True])
def test_final_curves_are_those_of_the_longest_run(runs, compressed):
    epochs = invented_epochs(runs, compressed=compressed).sample(frac=1, random_state=0)
    found = final_curves(epochs)
    for trial in runs["trial"]:
        mine = found[found["trial"] == trial]
        assert mine["epoch"].tolist() == [1, 2, 3, 4, 5, 6]
        rungs = [1] * 6 if compressed else [0, 0, 1, 1, 1, 1]
        assert mine["rung"].tolist() == rungs


def test_a_longer_run_that_has_just_begun_counts_alone(runs):
    epochs = invented_epochs(runs.iloc[:1], compressed=True)
    begun = epochs[(epochs["rung"] == 0) | (epochs["epoch"] == 1)]
    found = final_curves(begun)
    assert found[["rung", "epoch"]].to_numpy().tolist() == [[1, 1]]


def ranks_of(values):
    """The rank of each value, equal ones sharing the mean of theirs."""
    ordered = sorted(values)
    return [
        sum(i for i, other in enumerate(ordered) if other == value) / ordered.count(value)
        for value in values
    ]


@pytest.mark.parametrize("compressed", [False, True])
def test_budget_correlations_are_those_of_the_ranks(runs, compressed):
    epochs = invented_epochs(runs, compressed=compressed)
    found = budget_correlations(epochs, "val_accuracy", end=6)
    kinds = ["prefix"] * 5 + ["compressed"] * compressed
    assert found["budget"].tolist() == kinds
    final = epochs[epochs["rung"] == 1] if compressed else epochs
    last = final[final["epoch"] == 6].set_index("trial")["val_accuracy"]
    for row in found.itertuples():
        source = epochs[epochs["rung"] == 0] if row.budget == "compressed" else final
        early = source[source["epoch"] == row.epochs].set_index("trial")["val_accuracy"]
        both = pd.concat([early, last], axis=1).dropna().to_numpy()
        a, b = (np.array(ranks_of(column.tolist())) for column in both.T)
        a, b = a - a.mean(), b - b.mean()
        assert row.spearman == pytest.approx((a @ b) / math.sqrt((a @ a) * (b @ b)))
        assert row.count == len(both)
        assert -1 <= row.low < row.spearman < row.high <= 1
    if compressed:
        assert found["epochs"].iloc[-1] == 2
