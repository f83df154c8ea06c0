"""The figures of the front, its hypervolume and its bits."""

from __future__ import annotations

import itertools
import re

import pytest

from slb_autotune.report import figures
from slb_autotune.report.figures import front_data
from tests.report.figures.runs import LAYERS, changed, dot_count, dots, rendered, words


@pytest.mark.parametrize("name", ["light", "dark"])
def test_the_front_shows_every_trial_once(result, name):
    figure = rendered(figures.draw_front(result, name))
    (axes,) = figure.axes
    points = front_data.front_points(result)
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


def test_sizes_far_apart_get_a_log_axis_with_plain_numbers(result):
    wide = result.trials.copy()
    wide.loc[20:, "size_bytes"] = wide.loc[20:, "size_bytes"] * 12
    (axes,) = rendered(figures.draw_front(changed(result, wide))).axes
    assert axes.get_xscale() == "log"
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert len(labels) >= 3
    assert all(re.fullmatch(r"[\d,.]+", label) for label in labels)


def test_bad_trials_do_not_squeeze_the_front(result):
    bad = result.trials.copy()
    bad.loc[[10, 11, 12, 15], "val_accuracy"] = 10.0
    study = changed(result, bad)
    figure = rendered(figures.draw_front(study))
    assert figure.axes[0].get_ylim()[0] > 50
    count = (front_data.front_points(study)["val_accuracy"] < 50).sum()
    assert count == 4
    assert f"{count} of" in words(figure)
    assert "lie below the axis" in words(figure)


def test_three_objectives_have_no_line_between_members(result):
    trials = result.trials.assign(bitops=result.trials["T_e"] * 1e6)
    three = changed(result, trials, ("val_accuracy", "size_bytes", "bitops"))
    figure = rendered(figures.draw_front(three))
    assert figure.axes[0].lines[0].get_linestyle() == "None"
    assert "also that of bit operations" in words(figure)


def overlaps(texts, renderer) -> list[tuple[str, str]]:
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in texts if t.get_text()]
    return [(a, b) for (a, x), (b, y) in itertools.combinations(boxes, 2) if x.overlaps(y)]


def front_variants(result):
    runs = result.trials
    wide = runs.assign(
        size_bytes=(runs["size_bytes"] * 5.0 ** (runs["trial"] % 4)).astype("Int64")
    )
    large = runs.assign(size_bytes=runs["size_bytes"] * 1000)
    near = runs.assign(val_accuracy=runs["val_accuracy"] / 1e6 + 91.0)
    return {"plain": runs, "wide": wide, "large": large, "near": near, "one": runs.iloc[:1]}


@pytest.mark.parametrize("variant", ["plain", "wide", "large", "near", "one"])
def test_words_of_the_front_do_not_overlap(result, variant):
    figure = rendered(figures.draw_front(changed(result, front_variants(result)[variant])))
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


def test_hypervolume_has_a_line_and_a_level(result):
    figure = rendered(figures.draw_hypervolume(result))
    (axes,) = figure.axes
    curve, level = axes.lines
    assert len(curve.get_xdata()) == len(result.trials)
    assert level.get_ydata()[0] == front_data.uniform_hypervolume(result)
    assert curve.get_ydata()[-1] == result.hypervolume
    assert "invented" in words(figure)


def test_the_heat_map_writes_the_bits_of_every_layer(result):
    figure = rendered(figures.draw_bits(result))
    table = front_data.front_bits(result)
    axes = figure.axes[0]
    cells = [text.get_text() for text in axes.texts]
    assert cells == [f"{value:.0f}" for value in table.to_numpy().ravel()]
    assert [text.get_text() for text in axes.get_yticklabels()] == list(LAYERS)
    below = [text.get_text() for text in axes.get_xticklabels()]
    assert below[0] == f"{result.trials['size_bytes'].iloc[table.columns[0]] / 1000:.1f}"
    written = words(figure)
    assert "size (kB)" in written
    assert "validation accuracy (%)" in written
    best = result.trials["val_accuracy"].iloc[table.columns[-1]]
    assert f"{best:.1f}" in written
