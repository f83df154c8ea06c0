"""The numbers behind the figures of the front, against slow versions."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from slb_autotune.analysis.tables import RUN_COLUMNS, typed
from slb_autotune.config.metrics import METRICS, Objectives
from slb_autotune.report.figures import front_data
from slb_autotune.report.quantities import axes_of
from tests.report.figures.runs import LAYERS, changed, invented_run
from tests.report.invented import invented_result


def dominates(a, b):
    """a is no larger than b nowhere worse: accuracy up, size down."""
    return a[0] >= b[0] and a[1] <= b[1] and (a[0] > b[0] or a[1] < b[1])


def slow_front(result):
    done = result.trials[result.trials["status"] == "done"]
    points = {
        row.trial: (row.val_accuracy, row.size_bytes)
        for row in done.itertuples()
        if not math.isnan(row.val_accuracy)
    }
    return {
        trial
        for trial, mine in points.items()
        if not any(dominates(other, mine) for other in points.values())
    }


def test_front_points_are_those_that_nothing_dominates(result):
    points = front_data.front_points(result)
    assert set(points.loc[points["on_front"], "trial"]) == slow_front(result)
    assert 2 < points["on_front"].sum() < len(points)
    shown = (
        result.trials["status"].isin(("done", "stopped")) & result.trials["val_accuracy"].notna()
    )
    assert points["trial"].tolist() == result.trials.loc[shown, "trial"].tolist()
    assert points["stopped"].sum() == (result.trials["status"] == "stopped").sum()
    assert points["kind"].tolist()[:5] == ["uniform", "uniform", "uniform", "paper", "trial"]
    assert points["width"].tolist()[:3] == [1, 2, 4]


def test_a_stopped_trial_is_on_no_front_however_good(result):
    better = result.trials.copy()
    better.loc[better["status"] == "stopped", "val_accuracy"] = 100.0
    points = front_data.front_points(changed(result, better))
    assert points["stopped"].any()
    assert not (points["stopped"] & points["on_front"]).any()


def test_the_front_is_the_one_that_the_study_has_marked(result):
    # A study with constraints: its best trial may not be allowed.
    members = sorted(slow_front(result))[1:]
    marked = result.trials.assign(on_front=result.trials["trial"].isin(members))
    points = front_data.front_points(replace(result, trials=marked))
    assert set(points.loc[points["on_front"], "trial"]) == set(members)


def test_uniform_widths_need_other_runs_that_mix():
    rng = np.random.default_rng(0)
    plain = [invented_run(i, rng, layer_bits=[b] * 4) for i, b in enumerate((1, 2))]
    assert front_data.uniform_widths(typed(plain, RUN_COLUMNS)) == [None, None]
    mixed = [*plain, invented_run(2, rng, layer_bits=[1, 1, 2, 2])]
    assert front_data.uniform_widths(typed(mixed, RUN_COLUMNS)) == [1, 2, None]
    words_only = [{**row, "bits": ""} for row in mixed]
    assert front_data.uniform_widths(typed(words_only, RUN_COLUMNS)) == [1, 2, None]
    floats = [*mixed, {**mixed[0], "bits": "", "weight_bits": "32"}]
    assert front_data.uniform_widths(typed(floats, RUN_COLUMNS))[-1] is None


@pytest.mark.parametrize(
    ("metrics", "axes"),
    [
        (("val_accuracy", "size_bytes"), ("size_bytes", "val_accuracy")),
        (("size_bytes", "val_accuracy"), ("size_bytes", "val_accuracy")),
        (("val_loss", "bitops"), ("bitops", "val_loss")),
        (("val_accuracy", "size_bytes", "bitops"), ("size_bytes", "val_accuracy")),
        (("val_accuracy",), ("trial", "val_accuracy")),
    ],
)
def test_quality_goes_up_and_cost_goes_across(metrics, axes):
    objectives = Objectives.of({name: METRICS[name].direction for name in metrics})
    assert axes_of(objectives) == axes


def slow_hypervolume(points, reference):
    """Area that some point dominates, cell by cell of the grid that all points span."""
    xs = sorted({0.0, reference[0], *(p[0] for p in points)})
    ys = sorted({0.0, reference[1], *(p[1] for p in points)})
    area = 0.0
    for (x0, x1), (y0, y1) in itertools.product(itertools.pairwise(xs), itertools.pairwise(ys)):
        covered = any(p[0] >= x1 and p[1] <= y0 for p in points)
        area += (x1 - x0) * (y1 - y0) * covered
    return area


def test_hypervolume_over_trials_is_the_area_of_the_dominated_cells(result):
    shuffled = replace(
        result, trials=result.trials.sample(frac=1, random_state=1), reference=(0.0, 30000.0)
    )
    runs = result.trials
    curve = front_data.hypervolume_curve(shuffled)
    assert curve["trials"].tolist() == list(range(1, len(runs) + 1))
    assert curve["trial"].tolist() == sorted(runs["trial"])
    for count in (1, 2, 5, 17, len(runs)):
        first = runs.iloc[:count]
        first = first[first["status"] == "done"]
        points = list(zip(first["val_accuracy"], first["size_bytes"].astype(float), strict=True))
        expected = slow_hypervolume(points, (0.0, 30000.0)) / (100 * 30000)
        assert curve["hypervolume"][count - 1] == pytest.approx(expected, rel=1e-9)
    assert (curve["hypervolume"].diff().dropna() >= 0).all()
    level = front_data.uniform_hypervolume(shuffled)
    uniform = runs.iloc[:4]  # the paper's run has one width as well
    points = list(zip(uniform["val_accuracy"], uniform["size_bytes"].astype(float), strict=True))
    assert level == pytest.approx(slow_hypervolume(points, (0.0, 30000.0)) / (100 * 30000))
    assert 0 < level < curve["hypervolume"].iloc[-1]


def test_the_curve_ends_at_the_hypervolume_of_the_study(result):
    limited = invented_result(
        result.trials, constraints=["size_bytes <= 8 kB", "val_accuracy >= 82"]
    )
    assert 0 < limited.hypervolume < result.hypervolume
    for study in (result, limited):
        assert front_data.hypervolume_curve(study)["hypervolume"].iloc[-1] == study.hypervolume


def test_hypervolume_has_no_level_where_all_or_none_are_uniform(result):
    for part in (result.trials.iloc[:4], result.trials.iloc[4:]):
        assert front_data.uniform_hypervolume(changed(result, part)) is None


@pytest.mark.parametrize("sign", [1, -1], ids=["maximised", "minimised"])
def test_the_figure_of_the_front_shows_no_more_than_it_needs(sign):
    values = np.array([90.0, 88.0, 85.0, 87.0, 40.0, 10.0]) * sign
    points = pd.DataFrame(
        {
            "y": values,
            "kind": ["trial", "trial", "uniform", "uniform", "uniform", "trial"],
            "width": pd.array([None, None, 1, 2, 2, None], dtype="Int64"),
            "stopped": False,
            "on_front": [True, True, False, False, False, False],
        }
    )
    # The worst that matters is 85, and 90 - 85 = 5 is less than a tenth of 90 - 10.
    assert front_data.worst_shown(points, "y", -sign) == pytest.approx(sign * (85 - 8))
    near = points.iloc[:4]
    assert front_data.worst_shown(near, "y", -sign) == pytest.approx(sign * 85)
    alone = points.assign(on_front=False, kind="trial")
    assert front_data.worst_shown(alone, "y", -sign) == pytest.approx(sign * 10)


def test_the_bits_of_the_front_go_from_small_to_large(result):
    table = front_data.front_bits(result)
    sizes = [result.trials["size_bytes"].iloc[row] for row in table.columns]
    assert sizes == sorted(sizes)
    assert {result.trials["trial"].iloc[row] for row in table.columns} == slow_front(result)
    assert table.index.tolist() == list(LAYERS)
    for row in table.columns:
        assert table[row].to_dict() == json.loads(result.trials["bits"].iloc[row])
    few = front_data.front_bits(result, most=3)
    assert few.columns.tolist()[::2] == [table.columns[0], table.columns[-1]]
