"""The numbers behind the figures of a search, against slow versions."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from slb_autotune.analysis.tables import RUN_COLUMNS, typed
from slb_autotune.report.figures import search_data
from tests.report.figures.runs import invented_run


def test_searched_numbers_are_those_that_vary(result):
    runs = result.trials
    assert search_data.searched_numbers(runs) == ["T_s", "T_e", "lr"]
    fixed = runs.assign(T_s=0.01)
    assert search_data.searched_numbers(fixed) == ["T_e", "lr"]
    cells = [json.dumps({"flat_from": 0.5 + 0.1 * (i % 3), "weight_bits/a": i}) for i in range(40)]
    more = runs.assign(T_s=0.01, lr=0.1, params=cells)
    assert search_data.searched_numbers(more) == ["T_e", "flat_from"]


def test_response_points_are_means_of_the_trials_at_a_point():
    rng = np.random.default_rng(5)
    rows = [
        invented_run(i, rng, T_e=float(10 ** (i % 3)), lr=[0.1, 0.2][i % 2], status=status)
        for i, status in enumerate(["done"] * 14 + ["stopped", "running", "failed"])
    ]
    rows.append(invented_run(17, rng, T_e=77.0, lr=0.3, status="failed"))
    runs = typed(rows, RUN_COLUMNS)
    expected: dict = {}
    for run in runs.itertuples():
        if run.status in ("done", "failed"):
            expected.setdefault((run.T_e, run.lr), []).append(run)
    points = search_data.response_points(runs, "val_accuracy", "T_e", "lr")
    assert len(points) == len(expected) == 7
    for place in points.itertuples():
        here = expected[place.x, place.y]
        done = [run.val_accuracy for run in here if run.status == "done"]
        assert place.count == len(here)
        assert place.mean == pytest.approx(
            sum(done) / len(done) if done else math.nan, nan_ok=True
        )


def test_the_surface_of_a_plane_is_that_plane():
    rng = np.random.default_rng(0)
    x, y = 10 ** rng.uniform(-3, 0, 30), rng.uniform(5, 9, 30)

    def plane(a, b):
        return 3 * np.log10(a) - 2 * b

    points = pd.DataFrame({"x": x, "y": y, "mean": plane(x, y)})
    found = search_data.surface(points, (True, False))
    grid = plane(*np.meshgrid(found.x, found.y))
    expected = np.clip(grid, points["mean"].min(), points["mean"].max())
    np.testing.assert_allclose(found.heights, expected, atol=1e-6)
    assert found.x[0] == pytest.approx(x.min())
    assert found.y[-1] == pytest.approx(y.max())
    corners = {(float(a), float(b)) for a, b in found.hull}
    assert corners < set(zip(x.tolist(), y.tolist(), strict=True))


def test_there_is_no_surface_through_few_points_or_points_in_a_line():
    line = np.arange(1.0, 20.0)
    points = pd.DataFrame({"x": line, "y": line, "mean": line})
    assert search_data.surface(points, (False, False)) is None
    assert search_data.surface(points.assign(y=1.0), (False, False)) is None
    assert search_data.surface(points.iloc[:11], (False, False)) is None


def test_importances_are_ordered_and_the_rest_is_summed():
    shares = pd.DataFrame(
        {"a": [0.1, 0.2], "b": [0.5, 0.1], "c": [0.2, 0.3], "d": [0.2, np.nan]},
        index=["val_accuracy", "size_bytes"],
    )
    found = search_data.top_importances(shares, most=2)
    assert found.columns.tolist() == ["b", "c", "2 others"]
    np.testing.assert_allclose(found["2 others"], [0.3, 0.2])
    assert search_data.top_importances(shares, most=4).columns.tolist() == ["b", "c", "a", "d"]
