"""Figures: their numbers against slow versions, and what is drawn from them."""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
import warnings
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.text import Text

from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS, typed
from slb_autotune.errors import ConfigError
from slb_autotune.quant import temperature
from slb_autotune.report import figures
from slb_autotune.report.figures import compute, theme

GOALS = {"val_accuracy": "maximize", "size_bytes": "minimize"}
LAYERS = ("layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1", "layer3.0.conv1")
WEIGHTS = np.array([2000, 2000, 8000, 32000])
SCHEDULES = ("linear", "sin", "exp")


def invented_run(trial: int, rng: np.random.Generator, **changes) -> dict:
    bits = rng.choice([1, 2, 4], len(LAYERS)).tolist()
    T_s, T_e, lr = 10 ** rng.uniform([-3, 0, -2], [0, 4, 0])
    row = {
        "study": "invented",
        "trial": trial,
        "status": "done",
        "source": "sampler",
        "method": "slb",
        "schedule": SCHEDULES[trial % 3],
        "T_s": T_s,
        "T_e": T_e,
        "lr": lr,
        "epochs": 6,
        "val_accuracy": 80 + 2 * np.mean(bits) - (np.log10(T_e) - 2) ** 2 + rng.normal(),
        "params": json.dumps({"T_s": T_s, "T_e": T_e, "lr": lr}),
        "layer_bits": bits,
        **changes,
    }
    bits = row.pop("layer_bits")
    return {
        **row,
        "weight_bits": str(bits[0]) if len(set(bits)) == 1 else "mixed",
        "bits": json.dumps(dict(zip(LAYERS, bits, strict=True))),
        "size_bytes": int((WEIGHTS * bits).sum() / 8) + 1000,
    }


def invented_runs(count: int = 40) -> pd.DataFrame:
    """Three uniform allocations, the paper's schedule, then trials, some stopped or failed."""
    rng = np.random.default_rng(7)
    rows = [
        invented_run(i, rng, source=f"uniform {b} bit", layer_bits=[b] * 4)
        for i, b in enumerate((1, 2, 4))
    ]
    paper = {"source": "paper", "T_s": 0.01, "T_e": 10.0, "layer_bits": [1] * 4}
    rows.append(invented_run(3, rng, **paper))
    for trial in range(4, count):
        status = {0: "stopped", 5: "failed"}.get(trial % 9, "done")
        changes = {"val_accuracy": math.nan} if status == "failed" else {}
        mixed = [1, 2, 4, int(rng.choice([1, 2, 4]))]
        rng.shuffle(mixed)
        rows.append(invented_run(trial, rng, status=status, layer_bits=mixed, **changes))
    return typed(rows, RUN_COLUMNS)


def invented_epochs(runs: pd.DataFrame, *, compressed: bool = False) -> pd.DataFrame:
    """Two epochs of rung 0 and four more; or a run of two epochs, then one of six."""
    rng = np.random.default_rng(3)
    rows = []
    for run in runs.to_dict("records"):
        stretches = [(0, 1, 2), (1, 1, 6)] if compressed else [(0, 1, 2), (1, 3, 6)]
        for rung, first, last in stretches:
            total = last if compressed else 6
            rows += [
                {
                    "study": run["study"],
                    "trial": run["trial"],
                    "rung": rung,
                    "epoch": epoch,
                    "temperature": run["T_s"] * (run["T_e"] / run["T_s"]) ** (epoch / total),
                    "val_accuracy": run["val_accuracy"] * (1 - 0.5**epoch) + rng.normal(),
                    "quantization_gap": 0.5**epoch,
                    "frozen_fraction": epoch / total,
                    "flip_rate": 0.1 / epoch,
                }
                for epoch in range(first, last + 1)
            ]
    return typed(rows, EPOCH_COLUMNS)


@pytest.fixture(scope="module")
def runs():
    return invented_runs()


@pytest.fixture(scope="module")
def epochs(runs):
    return invented_epochs(runs)


def rendered(figure):
    """The figure, laid out and drawn with every warning an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.draw_without_rendering()
    return figure


def words(figure) -> str:
    """All that is written in a figure, without breaks and formulas."""
    found = [text.get_text() for text in figure.findobj(Text) if text.get_visible()]
    return " ".join(found).replace("\n", " ").replace("$", "").strip()


def dots(axes) -> list[PathCollection]:
    return [item for item in axes.collections if isinstance(item, PathCollection)]


def dot_count(axes) -> int:
    return sum(len(item.get_offsets()) for item in dots(axes))


# What is computed


def dominates(a, b):
    """a is no larger than b nowhere worse: accuracy up, size down."""
    return a[0] >= b[0] and a[1] <= b[1] and (a[0] > b[0] or a[1] < b[1])


def slow_front(runs):
    done = runs[runs["status"] == "done"]
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


def test_front_points_are_those_that_nothing_dominates(runs):
    points = compute.front_points(runs, GOALS)
    assert set(points.loc[points["on_front"], "trial"]) == slow_front(runs)
    assert 2 < points["on_front"].sum() < len(points)
    shown = runs["status"].isin(("done", "stopped")) & runs["val_accuracy"].notna()
    assert points["trial"].tolist() == runs.loc[shown, "trial"].tolist()
    assert points["stopped"].sum() == (runs["status"] == "stopped").sum()
    assert points["kind"].tolist()[:5] == ["uniform", "uniform", "uniform", "paper", "trial"]
    assert points["width"].tolist()[:3] == [1, 2, 4]


def test_a_stopped_trial_is_on_no_front_however_good(runs):
    better = runs.copy()
    better.loc[better["status"] == "stopped", "val_accuracy"] = 100.0
    points = compute.front_points(better, GOALS)
    assert points["stopped"].any()
    assert not (points["stopped"] & points["on_front"]).any()


def test_runs_that_say_they_are_on_a_front_leave_others_out(runs):
    # A study with constraints says so: its best trial may not be allowed.
    flagged = runs.assign(on_front=False).astype({"on_front": "boolean"})
    members = sorted(slow_front(runs))
    flagged.loc[flagged["trial"].isin(members[1:]), "on_front"] = True
    points = compute.front_points(flagged, GOALS)
    assert set(points.loc[points["on_front"], "trial"]) == set(members[1:])


def test_uniform_widths_need_other_runs_that_mix():
    rng = np.random.default_rng(0)
    plain = [invented_run(i, rng, layer_bits=[b] * 4) for i, b in enumerate((1, 2))]
    assert compute.uniform_widths(typed(plain, RUN_COLUMNS)) == [None, None]
    mixed = [*plain, invented_run(2, rng, layer_bits=[1, 1, 2, 2])]
    assert compute.uniform_widths(typed(mixed, RUN_COLUMNS)) == [1, 2, None]
    words_only = [{**row, "bits": ""} for row in mixed]
    assert compute.uniform_widths(typed(words_only, RUN_COLUMNS)) == [1, 2, None]
    floats = [*mixed, {**mixed[0], "bits": "", "weight_bits": "32"}]
    assert compute.uniform_widths(typed(floats, RUN_COLUMNS))[-1] is None


@pytest.mark.parametrize(
    ("goals", "axes"),
    [
        (GOALS, ("size_bytes", "val_accuracy")),
        (dict(reversed(GOALS.items())), ("size_bytes", "val_accuracy")),
        ({"val_loss": "minimize", "bitops": "minimize"}, ("bitops", "val_loss")),
        ({**GOALS, "bitops": "minimize"}, ("size_bytes", "val_accuracy")),
    ],
)
def test_quality_goes_up_and_cost_goes_across(goals, axes):
    assert compute.axes_of(goals) == axes


def slow_hypervolume(points, reference):
    """Area that some point dominates, cell by cell of the grid that all points span."""
    xs = sorted({0.0, reference[0], *(p[0] for p in points)})
    ys = sorted({0.0, reference[1], *(p[1] for p in points)})
    area = 0.0
    for (x0, x1), (y0, y1) in itertools.product(itertools.pairwise(xs), itertools.pairwise(ys)):
        covered = any(p[0] >= x1 and p[1] <= y0 for p in points)
        area += (x1 - x0) * (y1 - y0) * covered
    return area


def test_hypervolume_over_trials_is_the_area_of_the_dominated_cells(runs):
    shuffled = runs.sample(frac=1, random_state=1)
    reference = {"val_accuracy": 0.0, "size_bytes": 30000.0}
    curve = compute.hypervolume_curve(shuffled, GOALS, reference)
    assert curve["trials"].tolist() == list(range(1, len(runs) + 1))
    assert curve["trial"].tolist() == sorted(runs["trial"])
    for count in (1, 2, 5, 17, len(runs)):
        first = runs.iloc[:count]
        first = first[first["status"] == "done"]
        points = list(zip(first["val_accuracy"], first["size_bytes"].astype(float), strict=True))
        expected = slow_hypervolume(points, (0.0, 30000.0)) / (100 * 30000)
        assert curve["hypervolume"][count - 1] == pytest.approx(expected, rel=1e-9)
    assert (curve["hypervolume"].diff().dropna() >= 0).all()
    level = compute.uniform_hypervolume(runs, GOALS, reference)
    uniform = runs.iloc[:3]
    points = list(zip(uniform["val_accuracy"], uniform["size_bytes"].astype(float), strict=True))
    # The paper's run has one width as well.
    points.append((runs["val_accuracy"][3], float(runs["size_bytes"][3])))
    assert level == pytest.approx(slow_hypervolume(points, (0.0, 30000.0)) / (100 * 30000))
    assert 0 < level < curve["hypervolume"].iloc[-1]


def test_hypervolume_has_no_level_where_all_or_none_are_uniform(runs):
    assert compute.uniform_hypervolume(runs.iloc[:4], GOALS) is None
    assert compute.uniform_hypervolume(runs.iloc[4:], GOALS) is None


def test_the_reference_is_twice_the_worst_finished_run(runs):
    done = runs[runs["status"] == "done"]
    assert compute.reference_point(runs, GOALS) == {
        "val_accuracy": 0.0,
        "size_bytes": 2.0 * done["size_bytes"].max(),
    }


@pytest.mark.parametrize(("direction", "sign"), [("maximize", 1), ("minimize", -1)])
def test_the_figure_of_the_front_shows_no_more_than_it_needs(direction, sign):
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
    assert compute.worst_shown(points, "y", direction) == pytest.approx(sign * (85 - 8))
    near = points.iloc[:4]
    assert compute.worst_shown(near, "y", direction) == pytest.approx(sign * 85)
    alone = points.assign(on_front=False, kind="trial")
    assert compute.worst_shown(alone, "y", direction) == pytest.approx(sign * 10)


def test_searched_numbers_are_those_that_vary(runs):
    assert compute.searched_numbers(runs) == ["T_s", "T_e", "lr"]
    fixed = runs.assign(T_s=0.01)
    assert compute.searched_numbers(fixed) == ["T_e", "lr"]
    cells = [json.dumps({"flat_from": 0.5 + 0.1 * (i % 3), "weight_bits/a": i}) for i in range(40)]
    more = runs.assign(T_s=0.01, lr=0.1, params=cells)
    assert compute.searched_numbers(more) == ["T_e", "flat_from"]


def test_response_points_are_means_of_the_trials_at_a_place():
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
    points = compute.response_points(runs, "val_accuracy", "T_e", "lr")
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
    found = compute.surface(points, (True, False))
    grid = plane(*np.meshgrid(found.x, found.y))
    expected = np.clip(grid, points["mean"].min(), points["mean"].max())
    np.testing.assert_allclose(found.heights, expected, atol=1e-6)
    assert found.x[0] == pytest.approx(x.min())
    assert found.y[-1] == pytest.approx(y.max())
    corners = {(float(a), float(b)) for a, b in found.hull}
    assert corners < set(zip(x.tolist(), y.tolist(), strict=True))


def test_there_is_no_surface_through_few_places_or_places_in_a_line():
    line = np.arange(1.0, 20.0)
    points = pd.DataFrame({"x": line, "y": line, "mean": line})
    assert compute.surface(points, (False, False)) is None
    assert compute.surface(points.assign(y=1.0), (False, False)) is None
    assert compute.surface(points.iloc[:11], (False, False)) is None


def test_importances_are_ordered_and_the_rest_is_summed():
    shares = pd.DataFrame(
        {"a": [0.1, 0.2], "b": [0.5, 0.1], "c": [0.2, 0.3], "d": [0.2, np.nan]},
        index=["val_accuracy", "size_bytes"],
    )
    found = compute.top_importances(shares, most=2)
    assert found.columns.tolist() == ["b", "c", "2 others"]
    np.testing.assert_allclose(found["2 others"], [0.3, 0.2])
    assert compute.top_importances(shares, most=4).columns.tolist() == ["b", "c", "a", "d"]


def test_the_bits_of_the_front_go_from_small_to_large(runs):
    table = compute.front_bits(runs, GOALS)
    sizes = [runs["size_bytes"].iloc[row] for row in table.columns]
    assert sizes == sorted(sizes)
    assert {runs["trial"].iloc[row] for row in table.columns} == slow_front(runs)
    assert table.index.tolist() == list(LAYERS)
    for row in table.columns:
        assert table[row].to_dict() == json.loads(runs["bits"].iloc[row])
    few = compute.front_bits(runs, GOALS, most=3)
    assert few.columns.tolist()[::2] == [table.columns[0], table.columns[-1]]


@pytest.mark.parametrize("compressed", [False, True])
def test_final_curves_are_those_of_the_longest_run(runs, compressed):
    epochs = invented_epochs(runs, compressed=compressed).sample(frac=1, random_state=0)
    found = compute.final_curves(epochs)
    for trial in runs["trial"]:
        mine = found[found["trial"] == trial]
        assert mine["epoch"].tolist() == [1, 2, 3, 4, 5, 6]
        rungs = [1] * 6 if compressed else [0, 0, 1, 1, 1, 1]
        assert mine["rung"].tolist() == rungs


def test_a_longer_run_that_has_just_begun_counts_alone(runs):
    epochs = invented_epochs(runs.iloc[:1], compressed=True)
    begun = epochs[(epochs["rung"] == 0) | (epochs["epoch"] == 1)]
    found = compute.final_curves(begun)
    assert found[["rung", "epoch"]].to_numpy().tolist() == [[1, 1]]


def test_schedules_are_compared_at_the_temperatures_that_most_were_tried_with():
    rng = np.random.default_rng(2)
    pairs = [("exp", 10), ("sin", 10), ("exp", 100), ("sin", 100), ("linear", 100), ("exp", 999)]
    rows = [
        invented_run(i, rng, schedule=name, T_s=0.01, T_e=float(T_e))
        for i, (name, T_e) in enumerate(pairs)
    ]
    assert compute.schedule_trials(typed(rows, RUN_COLUMNS), "val_accuracy")["trial"].tolist() == [
        2,
        3,
        4,
    ]


def test_schedules_without_temperatures_in_common_are_shown_by_their_best(runs):
    chosen = compute.schedule_trials(runs, "val_accuracy")
    for name in SCHEDULES:
        rows = runs[(runs["schedule"] == name) & (runs["status"] == "done")]
        best = rows.loc[rows["val_accuracy"].idxmax(), "trial"]
        assert chosen.loc[chosen["schedule"] == name, "trial"].tolist() == [best]


def test_schedule_curves_are_means_over_trials():
    rng = np.random.default_rng(4)
    rows = [invented_run(i, rng, T_s=0.01, T_e=10.0) for i in range(7)]
    runs = typed(rows, RUN_COLUMNS)
    epochs = invented_epochs(runs)
    curves = compute.schedule_curves(runs, epochs, "val_accuracy")
    for row in curves.itertuples():
        trials = [r["trial"] for r in rows if r["schedule"] == row.schedule]
        mine = epochs[epochs["trial"].isin(trials) & (epochs["epoch"] == row.epoch)]
        values = mine["val_accuracy"].tolist()
        assert row.mean == pytest.approx(sum(values) / len(values))
        assert (row.low, row.high) == (min(values), max(values))
        assert row.temperature == pytest.approx(temperature("exp", row.epoch, 6, 0.01, 10.0))
    assert len(curves) == 3 * 6


def test_spread_curves_are_quartiles_of_what_is_known(epochs):
    curves = compute.final_curves(epochs)
    found = compute.spread_curves(curves, "val_accuracy")
    for row in found.itertuples():
        values = sorted(curves.loc[curves["epoch"] == row.epoch, "val_accuracy"].dropna())
        expected = [np.percentile(values, q) for q in (25, 50, 75)]
        assert [row.low, row.median, row.high] == pytest.approx(expected)


def ranks_of(values):
    """The place of each value, equal ones sharing the mean of theirs."""
    ordered = sorted(values)
    return [
        sum(i for i, other in enumerate(ordered) if other == value) / ordered.count(value)
        for value in values
    ]


@pytest.mark.parametrize("compressed", [False, True])
def test_rung_correlations_are_those_of_the_ranks(runs, compressed):
    epochs = invented_epochs(runs, compressed=compressed)
    found = compute.rung_correlations(epochs, "val_accuracy", end=6)
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


def test_the_interval_of_a_correlation():
    # Fisher's z of 0.5 is 0.5493; its error with 28 trials is sqrt(1.125 / 25) = 0.2121.
    low, high = compute.interval(0.5, 28)
    assert math.atanh(low) == pytest.approx(0.5493 - 1.96 * 0.2121, abs=1e-3)
    assert math.atanh(high) == pytest.approx(0.5493 + 1.96 * 0.2121, abs=1e-3)


def test_densities_sum_to_one_and_empty_histograms_have_none():
    edges, heights = compute.densities((1, [1, 3, 4], [-1, 0, 0.5, 1]))
    assert (heights * np.diff(edges)).sum() == pytest.approx(1)
    assert heights.tolist() == [0.125, 0.75, 1.0]
    assert compute.densities((1, [0, 0], [-1, 0, 1])) is None
    with pytest.raises(ConfigError, match="3 counts needs 4 edges; got 3"):
        compute.densities((1, [1, 2, 3], [0, 1, 2]))


def test_an_unknown_column_is_named(runs):
    with pytest.raises(ConfigError, match=r"no column 'val_acuracy'.*did you mean 'val_accuracy'"):
        compute.numbers(runs, "val_acuracy")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (1, "1"), (12.75, "12.75"), (0.0001, "0.0001"), (1e-5, "1e-5"),
        (1000, "1,000"), (123456, "123,456"), (2.5e7, "2.5e7"), (0.007328, "0.007328"),
    ],
)  # fmt: skip
def test_short_numbers(value, text):
    assert theme.short(value) == text


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.5, 2000, [1, 10, 100, 1000]),
        (8, 130, [10, 20, 50, 100]),
        (30, 95, [30, 40, 50, 60, 80]),
        (1e-3, 1e6, [0.001, 0.1, 10, 1000, 100000]),
    ],
)
def test_log_ticks_are_round_and_few(low, high, ticks):
    assert theme.log_ticks(low, high) == ticks


# What is drawn


@pytest.mark.parametrize("name", ["light", "dark"])
def test_the_front_shows_every_trial_once(runs, name):
    figure = rendered(figures.draw_front(runs, GOALS, name))
    (axes,) = figure.axes
    points = compute.front_points(runs, GOALS)
    (line,) = axes.lines
    plain_members = points[points["on_front"] & (points["kind"] == "trial")]
    assert dot_count(axes) == len(points) - len(plain_members)
    members = points[points["on_front"]].sort_values("size_bytes")
    assert line.get_xdata().tolist() == pytest.approx((members["size_bytes"] / 1000).tolist())
    assert line.get_ydata().tolist() == members["val_accuracy"].tolist()
    assert line.get_drawstyle() == "steps-post"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert set(labels) == {
        "front", "other trials", "uniform bits", "the paper's schedule", "stopped early",
    }  # fmt: skip
    hollow = next(item for item in dots(axes) if item.get_label() == "stopped early")
    assert len(hollow.get_facecolor()) == 0
    assert axes.get_xlabel() == "size (kB)"
    assert axes.get_ylabel() == "validation accuracy (%)"
    assert all(f"{bits} bit" in words(figure) for bits in (1, 2, 4))


def test_sizes_far_apart_get_a_log_axis_with_plain_numbers(runs):
    wide = runs.copy()
    wide.loc[20:, "size_bytes"] = wide.loc[20:, "size_bytes"] * 12
    (axes,) = rendered(figures.draw_front(wide, GOALS)).axes
    assert axes.get_xscale() == "log"
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert len(labels) >= 3
    assert all(re.fullmatch(r"[\d,.]+", label) for label in labels)


def test_bad_trials_do_not_squeeze_the_front(runs):
    bad = runs.copy()
    bad.loc[[10, 11, 12, 15], "val_accuracy"] = 10.0
    figure = rendered(figures.draw_front(bad, GOALS))
    assert figure.axes[0].get_ylim()[0] > 50
    count = (compute.front_points(bad, GOALS)["val_accuracy"] < 50).sum()
    assert count == 4
    assert f"{count} of" in words(figure)
    assert "lie below the axis" in words(figure)


def test_three_objectives_have_no_line_between_members(runs):
    goals = {**GOALS, "T_e": "minimize"}
    figure = rendered(figures.draw_front(runs, goals))
    assert figure.axes[0].lines[0].get_linestyle() == "None"
    assert "also that of end temperature T_e" in words(figure)


def overlaps(texts, renderer) -> list[tuple[str, str]]:
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in texts if t.get_text()]
    return [(a, b) for (a, x), (b, y) in itertools.combinations(boxes, 2) if x.overlaps(y)]


def front_variants(runs):
    wide = runs.assign(
        size_bytes=(runs["size_bytes"] * 5.0 ** (runs["trial"] % 4)).astype("Int64")
    )
    large = runs.assign(size_bytes=runs["size_bytes"] * 1000)
    near = runs.assign(val_accuracy=runs["val_accuracy"] / 1e6 + 91.0)
    return {"plain": runs, "wide": wide, "large": large, "near": near, "one": runs.iloc[:1]}


@pytest.mark.parametrize("variant", ["plain", "wide", "large", "near", "one"])
def test_words_of_the_front_do_not_overlap(runs, variant):
    figure = rendered(figures.draw_front(front_variants(runs)[variant], GOALS))
    (axes,) = figure.axes
    renderer = figure.canvas.get_renderer()
    x, y = axes.get_xlim(), axes.get_ylim()
    across = [t for t in axes.get_xticklabels() if x[0] <= t.get_position()[0] <= x[1]]
    upwards = [t for t in axes.get_yticklabels() if y[0] <= t.get_position()[1] <= y[1]]
    assert len(across) >= 2
    assert len(upwards) >= 2
    others = [axes.xaxis.label, axes.yaxis.label, *axes.get_legend().get_texts()]
    assert overlaps([*across, *upwards, *others], renderer) == []
    page = figure.bbox
    for text in (*across, *upwards, *others):
        box = text.get_window_extent(renderer)
        assert box.x0 >= page.x0
        assert box.x1 <= page.x1
        assert box.y0 >= page.y0
        assert box.y1 <= page.y1


def test_hypervolume_has_a_line_a_study_and_a_level(runs):
    figure = rendered(figures.draw_hypervolume(runs, GOALS))
    (axes,) = figure.axes
    curve, level = axes.lines
    assert len(curve.get_xdata()) == len(runs)
    assert level.get_ydata()[0] == compute.uniform_hypervolume(runs, GOALS)
    two = pd.concat([runs, runs.assign(study="another")], ignore_index=True)
    labels = words(rendered(figures.draw_hypervolume(two, GOALS)))
    assert "invented" in labels
    assert "another" in labels


def test_the_heat_map_writes_the_bits_of_every_layer(runs):
    figure = rendered(figures.draw_bits(runs, GOALS))
    table = compute.front_bits(runs, GOALS)
    axes = figure.axes[0]
    cells = [text.get_text() for text in axes.texts]
    assert cells == [f"{value:.0f}" for value in table.to_numpy().ravel()]
    assert [text.get_text() for text in axes.get_yticklabels()] == list(LAYERS)
    below = [text.get_text() for text in axes.get_xticklabels()]
    assert below[0] == f"{runs['size_bytes'].iloc[table.columns[0]] / 1000:.1f}"
    written = words(figure)
    assert "size (kB)" in written
    assert "validation accuracy (%)" in written
    best = runs["val_accuracy"].iloc[table.columns[-1]]
    assert f"{best:.1f}" in written


def test_the_response_has_log_axes_and_marks_failures(runs):
    figure = rendered(figures.draw_response(runs, GOALS))
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == "start temperature $T_s$"
    ended = runs["status"].isin(("done", "failed"))
    assert dot_count(axes) == ended.sum()
    assert len(axes.collections) == len(dots(axes)) + 1, "the surface"
    assert "failed" in words(figure)
    assert figure.axes[1].get_ylabel() == "validation accuracy (%)"


def test_a_response_of_few_places_has_no_surface_and_ticks_at_them(runs):
    grid = runs.assign(T_s=0.01, T_e=[10.0, 100.0] * 20, lr=[0.05, 0.05, 0.2, 0.2] * 10)
    figure = rendered(figures.draw_response(grid, GOALS))
    axes = figure.axes[0]
    assert dot_count(axes) == 4
    assert len(axes.collections) == len(dots(axes))
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0.05", "0.2"]
    assert "trials at one place" in words(figure)
    chosen = figures.draw_response(grid, GOALS, parameters=["lr", "T_e"]).axes[0]
    assert chosen.get_xlabel() == "learning rate"


def test_importance_has_a_bar_an_objective_and_parameter():
    shares = pd.DataFrame(
        {"T_e": [0.6, 0.1], "lr": [0.4, 0.0], "bits": [0.0, 0.9]},
        index=["val_accuracy", "size_bytes"],
    )
    axes = rendered(figures.draw_importance(shares)).axes[0]
    assert len(axes.patches) == 6
    assert max(bar.get_width() for bar in axes.patches) == pytest.approx(90)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["bits", "$T_e$", "lr"]


def sensitivities(costs):
    rows = [
        (layer, bits, 0.0, cost, 10)
        for layer, row in zip(LAYERS, costs, strict=True)
        for bits, cost in zip((1, 2, 32), row, strict=True)
    ]
    return pd.DataFrame(rows, columns=["layer", "bits", "loss", "cost", "bytes"])


def test_sensitivity_shows_what_a_log_axis_cannot_at_its_edges():
    table = sensitivities([(2, 0.01, 0), (math.inf, -0.1, 0), (0.5, 0.001, 0), (0.3, 0.2, 0)])
    figure = rendered(figures.draw_sensitivity(table))
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert dot_count(axes) == 8
    edges = [x for item in dots(axes) for x, _ in item.get_offsets() if x in axes.get_xlim()]
    assert len(edges) == 2
    assert "the loss did not rise" in words(figure)
    assert "the network broke" in words(figure)
    near = figures.draw_sensitivity(sensitivities([(0.2, 0.1, 0)] * 4))
    assert near.axes[0].get_xscale() == "linear"


def test_budgets_have_a_line_each_with_intervals(runs):
    table = compute.rung_correlations(invented_epochs(runs, compressed=True), "val_accuracy", 6)
    figure = rendered(figures.draw_budgets(table))
    (axes,) = figure.axes
    assert len(axes.containers) == 2
    assert "prefix" in words(figure)
    assert "compressed" in words(figure)
    assert axes.get_ylim()[1] == pytest.approx(1.03)


def test_schedules_have_a_temperature_and_a_result_each(runs, epochs):
    figure = rendered(figures.draw_schedules(runs, epochs))
    left, right = figure.axes
    assert len(left.lines) == len(right.lines) == 3
    assert left.get_yscale() == "log"
    assert "The best run of each schedule" in words(figure)
    assert "validation accuracy (%)" in words(figure)


def test_schedules_without_epochs_are_drawn_by_the_formula(runs, epochs):
    same = runs.assign(T_s=0.01, T_e=10.0)
    figure = rendered(figures.draw_schedules(same, epochs.iloc[:0]))
    left, _ = figure.axes
    for line in left.lines:
        x, y = line.get_data()
        for place in (0, 37, 100):
            expected = temperature(line.get_label(), place, 100, 0.01, 10.0)
            assert y[place] == pytest.approx(expected)
            assert x[place] == pytest.approx(6 * place / 100)
    assert "T_s = 0.01, T_e = 10." in words(figure)
    assert "No epoch of these runs" in words(figure)


def test_diagnostics_of_few_trials_are_lines_and_of_many_a_median(epochs):
    few = rendered(figures.draw_diagnostics(epochs, trials=[1, 2, 4]))
    assert [len(axes.lines) for axes in few.axes] == [3, 3, 3]
    assert "trial 4" in words(few)
    many = rendered(figures.draw_diagnostics(epochs))
    assert [len(axes.lines) for axes in many.axes] == [41, 41, 41]
    assert "each of 40 trials" in words(many)
    assert max(many.axes[1].lines[-1].get_ydata()) == pytest.approx(100), "in percent"


def histograms(count):
    rng = np.random.default_rng(0)
    edges = np.linspace(-1, 1, 41)
    return [(e, np.histogram(rng.normal(0, 0.3, 500), edges)[0], edges) for e in range(1, count)]


def test_a_histogram_has_a_ridge_an_epoch_and_at_most_twelve():
    figure = rendered(figures.draw_weight_histogram(histograms(6), "layer1"))
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == [f"epoch {epoch}" for epoch in range(1, 6)]
    assert "continuous weights of layer1" in words(figure)
    many = figures.draw_weight_histogram(histograms(41)).axes[0].get_yticklabels()
    assert len(many) == 12
    assert (many[0].get_text(), many[-1].get_text()) == ("epoch 1", "epoch 40")


def test_the_strip_shows_one_picture_whole_and_the_same_detail_of_all():
    rng = np.random.default_rng(0)
    large = rng.random((40, 60, 3))
    small = (large[::2, ::2] * 255).astype(np.uint8)
    pictures = [
        ("original", large, None),
        ("small", small, 24.313),
        ("grey", large[..., :1], 31.0),
    ]
    figure = rendered(figures.draw_strip(pictures, zoom=(10, 20, 16, 8)))
    whole, first, second, third = figure.axes
    assert whole.images[0].get_array().shape == (40, 60, 3)
    np.testing.assert_allclose(first.images[0].get_array(), large[20:28, 10:26])
    np.testing.assert_allclose(second.images[0].get_array(), small[10:14, 5:13] / 255)
    np.testing.assert_allclose(third.images[0].get_array(), large[20:28, 10:26, 0])
    (box,) = whole.patches
    assert (*box.get_xy(), box.get_width(), box.get_height()) == (9.5, 19.5, 16, 8)
    assert "small   24.31 dB" in words(figure)
    assert "original" in words(figure)


@pytest.mark.parametrize(("count", "shape"), [(1, (1, 2)), (3, (1, 4)), (4, (2, 3)), (5, (2, 3))])
def test_a_strip_of_many_pictures_has_two_rows_and_no_empty_frame(count, shape):
    figure = rendered(figures.draw_strip([("black", np.zeros((10, 20)), 30.0)] * count))
    assert len(figure.axes) == 1 + count
    assert figure.axes[0].get_gridspec().get_geometry() == shape


def test_a_box_beyond_the_picture_is_cut_to_it():
    picture = np.zeros((10, 20))
    figure = rendered(figures.draw_strip([("black", picture, math.nan)], zoom=(15, -3, 50, 50)))
    assert figure.axes[1].images[0].get_array().shape == (10, 5)
    assert "dB" not in words(figure)


def test_a_picture_of_a_strange_shape_is_refused():
    with pytest.raises(ConfigError, match=r"picture 'x' must be height x width.*\(5, 5, 2\)"):
        figures.draw_strip([("x", np.zeros((5, 5, 2)), None)])


# What is missing


def poor_runs(runs):
    return {
        "none": runs.iloc[:0],
        "one": runs.iloc[4:5],
        "two": runs.iloc[:2],
        "equal": pd.concat([runs.iloc[4:5]] * 3, ignore_index=True),
        "no values": runs.assign(val_accuracy=np.nan),
        "infinite": runs.assign(val_accuracy=np.inf),
        "failed": runs.assign(status="failed", val_accuracy=np.nan),
        "stopped": runs.assign(status="stopped"),
        "running": runs.assign(status="running", val_accuracy=np.nan),
        "no sizes": runs.assign(size_bytes=pd.array([None] * len(runs), dtype="Int64")),
        "hostile": runs.assign(study="a $ b_{ $^", schedule="exp"),
    }


KINDS = list(poor_runs(invented_runs(6)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "draw",
    [figures.draw_front, figures.draw_hypervolume, figures.draw_bits, figures.draw_response],
)
def test_poor_runs_give_a_figure_or_a_sentence(runs, draw, kind):
    figure = rendered(draw(poor_runs(runs)[kind], GOALS))
    drawn = any(axes.axison for axes in figure.axes)
    assert drawn or words(figure).endswith(".")


@pytest.mark.parametrize("kind", KINDS)
def test_poor_runs_give_figures_of_training(runs, epochs, kind):
    poor = poor_runs(runs)[kind]
    figure = rendered(figures.draw_schedules(poor, epochs))
    assert any(axes.axison for axes in figure.axes) or words(figure).endswith(".")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda epochs: epochs.iloc[:0], "No epoch has a gap"),
        (lambda epochs: epochs.assign(flip_rate=np.nan), "No epoch has flips"),
        (lambda epochs: epochs.iloc[:1], "trial 0"),
    ],
)
def test_poor_epochs_give_a_figure_or_a_sentence(epochs, change, sentence):
    assert sentence in words(rendered(figures.draw_diagnostics(change(epochs))))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: figures.draw_importance(pd.DataFrame()), "No parameter has an importance"),
        (lambda: figures.draw_importance(pd.DataFrame({"lr": [np.nan]})), "No parameter"),
        (lambda: figures.draw_sensitivity(sensitivities([(np.nan,) * 3] * 4)), "No layer was"),
        (lambda: figures.draw_sensitivity(sensitivities([(math.inf, 0, 0)] * 4)), "broke"),
        (lambda: figures.draw_sensitivity(sensitivities([(0, 0, 0)] * 4)), "1 bit"),
        (
            lambda: figures.draw_budgets(
                pd.DataFrame(columns=["budget", "epochs", "spearman", "low", "high"])
            ),
            "Too few trials",
        ),
        (
            lambda: figures.draw_budgets(
                pd.DataFrame(
                    [("prefix", 1, -0.2, np.nan, np.nan)],
                    columns=["budget", "epochs", "spearman", "low", "high"],
                )
            ),
            "prefix",
        ),
        (lambda: figures.draw_weight_histogram([]), "No histogram"),
        (lambda: figures.draw_weight_histogram([(1, [0, 0], [-1, 0, 1])]), "No histogram"),
        (lambda: figures.draw_weight_histogram([(3, [5], [-1, 1])]), "epoch 3"),
        (lambda: figures.draw_strip([]), "no picture"),
        (lambda: figures.draw_front(invented_runs(6), {"val_accuracy": "maximize"}), "two obj"),
    ],
)
def test_poor_tables_give_a_figure_or_a_sentence(make, sentence):
    assert sentence in words(rendered(make()))


def test_an_unknown_theme_and_no_objective_are_refused(runs):
    with pytest.raises(ConfigError, match="theme must be one of light, dark; got 'drak'"):
        figures.draw_front(runs, GOALS, "drak")
    for draw in (figures.draw_front, figures.draw_hypervolume, figures.draw_bits):
        with pytest.raises(ConfigError, match="at least one metric; got none"):
            draw(runs, {})


# How they are saved


def test_a_figure_is_saved_the_same_every_time(runs, tmp_path):
    for name in ("a", "b"):
        figures.save(figures.draw_front(runs, GOALS), tmp_path / name / "front v1.2")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["front v1.2.png", "front v1.2.svg"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert "<dc:date>" not in (tmp_path / "a" / "front v1.2.svg").read_text()


def test_figures_can_stand_in_one_page(runs, epochs):
    first = figures.svg_text(figures.draw_front(runs, GOALS), "front.light")
    second = figures.svg_text(figures.draw_diagnostics(epochs), "training")
    found = []
    for text in (first, second):
        root = ElementTree.fromstring(text)
        ids = [item.attrib["id"] for item in root.iter() if "id" in item.attrib]
        used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
        assert used
        assert set(used) <= set(ids)
        found += sorted(set(ids))
    assert len(found) == len(set(found))
    assert first.startswith("<svg")
    assert all(name.startswith(("front-light-", "training-")) for name in found)


def test_another_process_gives_the_same_bytes_and_keeps_its_settings():
    script = (
        "import sys, matplotlib, pandas as pd\n"
        "before = {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != 'backend'}\n"
        "from slb_autotune.report import figures\n"
        "shares = pd.DataFrame({'lr': [0.4], 'T_e': [0.6]}, index=['val_accuracy'])\n"
        "sys.stdout.write(figures.svg_text(figures.draw_importance(shares), 'bars'))\n"
        "assert all(matplotlib.rcParams[k] == v for k, v in before.items())\n"
        "heavy = {'matplotlib.pyplot', 'torch', 'plotly', 'scipy.stats'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", script]
    other = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    shares = pd.DataFrame({"lr": [0.4], "T_e": [0.6]}, index=["val_accuracy"])
    assert other == figures.svg_text(figures.draw_importance(shares), "bars")


# What is interactive


def checked(figure):
    """Plotly's own check of every name and value, and that JSON can hold it."""
    plotly = pytest.importorskip("plotly.graph_objects")
    json.dumps(figure, allow_nan=False)
    return plotly.Figure(figure)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_the_interactive_front_shows_every_trial_once(runs, name):
    figure = figures.interactive_front(runs, GOALS, name)
    checked(figure)
    points = compute.front_points(runs, GOALS)
    shown = [trial for trace in figure["data"] for trial in trace.get("customdata", [])]
    assert sorted(shown) == sorted(points["trial"])
    names = [trace.get("name") for trace in figure["data"]]
    assert names == [None, "other trials", "uniform bits", "the paper's schedule", "front"]
    assert figure["layout"]["xaxis"]["title"]["text"] == "size (kB)"
    others = figure["data"][1]
    stopped = set(points.loc[points["stopped"], "trial"])
    for trial, symbol in zip(others["customdata"], others["marker"]["symbol"], strict=True):
        assert symbol == ("circle-open" if trial in stopped else "circle")


def test_words_of_others_are_escaped(runs):
    hostile = runs.assign(source="<script>alert(1)</script>", study="<b>x</b>")
    front = figures.interactive_front(hostile, GOALS)
    volume = figures.interactive_hypervolume(hostile, GOALS)
    text = json.dumps([front, volume])
    assert "&lt;script&gt;" in text
    assert "<script>" not in text
    assert "<b>x" not in text


def test_the_interactive_hypervolume_is_the_curve(runs):
    figure = figures.interactive_hypervolume(runs, GOALS)
    checked(figure)
    curve, level = figure["data"]
    assert curve["y"] == compute.hypervolume_curve(runs, GOALS)["hypervolume"].tolist()
    assert level["name"] == "uniform bits alone"


@pytest.mark.parametrize("kind", KINDS)
def test_poor_runs_give_interactive_figures(runs, kind):
    poor = poor_runs(runs)[kind]
    for draw in (figures.interactive_front, figures.interactive_hypervolume):
        checked(draw(poor, GOALS))
    sentence = checked(figures.interactive_front(poor, {"val_accuracy": "maximize"}))
    assert sentence.layout.annotations[0].text == "A front needs two objectives."
