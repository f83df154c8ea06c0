"""The numbers behind the figures of training, against slow versions."""

from __future__ import annotations

import numpy as np
import pytest

from slb_autotune.analysis.budgets import final_curves
from slb_autotune.analysis.tables import RUN_COLUMNS, typed
from slb_autotune.errors import ConfigError
from slb_autotune.quant import temperature
from slb_autotune.report.figures import curve_data
from tests.report.figures.runs import SCHEDULES, invented_epochs, invented_run


def test_schedules_are_compared_at_the_temperatures_that_most_were_tried_with():
    rng = np.random.default_rng(2)
    pairs = [("exp", 10), ("sin", 10), ("exp", 100), ("sin", 100), ("linear", 100), ("exp", 999)]
    rows = [
        invented_run(i, rng, schedule=name, T_s=0.01, T_e=float(T_e))
        for i, (name, T_e) in enumerate(pairs)
    ]
    chosen = curve_data.schedule_trials(typed(rows, RUN_COLUMNS), "val_accuracy")
    assert chosen["trial"].tolist() == [2, 3, 4]


def test_of_a_loss_the_lowest_is_the_best():
    rng = np.random.default_rng(2)
    rows = [
        invented_run(i, rng, schedule=name, T_e=10.0 + i, val_loss=loss)
        for i, (name, loss) in enumerate([("exp", 2.0), ("exp", 0.5), ("sin", 1.0)])
    ]
    chosen = curve_data.schedule_trials(typed(rows, RUN_COLUMNS), "val_loss")
    assert chosen["trial"].tolist() == [1, 2]


def test_schedules_without_temperatures_in_common_are_shown_by_their_best(result):
    runs = result.trials
    chosen = curve_data.schedule_trials(runs, "val_accuracy")
    for name in SCHEDULES:
        rows = runs[(runs["schedule"] == name) & (runs["status"] == "done")]
        best = rows.loc[rows["val_accuracy"].idxmax(), "trial"]
        assert chosen.loc[chosen["schedule"] == name, "trial"].tolist() == [best]


def test_schedule_curves_are_means_over_trials():
    rng = np.random.default_rng(4)
    rows = [invented_run(i, rng, T_s=0.01, T_e=10.0) for i in range(7)]
    runs = typed(rows, RUN_COLUMNS)
    epochs = invented_epochs(runs)
    curves = curve_data.schedule_curves(runs, epochs, "val_accuracy")
    for row in curves.itertuples():
        trials = [r["trial"] for r in rows if r["schedule"] == row.schedule]
        mine = epochs[epochs["trial"].isin(trials) & (epochs["epoch"] == row.epoch)]
        values = mine["val_accuracy"].tolist()
        assert row.mean == pytest.approx(sum(values) / len(values))
        assert (row.low, row.high) == (min(values), max(values))
        assert row.temperature == pytest.approx(temperature("exp", row.epoch, 6, 0.01, 10.0))
    assert len(curves) == 3 * 6


def test_spread_curves_are_quartiles_of_what_is_known(result):
    curves = final_curves(result.epochs)
    found = curve_data.spread_curves(curves, "val_accuracy")
    for row in found.itertuples():
        values = sorted(curves.loc[curves["epoch"] == row.epoch, "val_accuracy"].dropna())
        expected = [np.percentile(values, q) for q in (25, 50, 75)]
        assert [row.low, row.median, row.high] == pytest.approx(expected)


def test_densities_sum_to_one_and_empty_histograms_have_none():
    edges, heights = curve_data.densities((1, [1, 3, 4], [-1, 0, 0.5, 1]))
    assert (heights * np.diff(edges)).sum() == pytest.approx(1)
    assert heights.tolist() == [0.125, 0.75, 1.0]
    assert curve_data.densities((1, [0, 0], [-1, 0, 1])) is None
    with pytest.raises(ConfigError, match="3 counts needs 4 edges; got 3"):
        curve_data.densities((1, [1, 2, 3], [0, 1, 2]))
