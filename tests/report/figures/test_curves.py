"""The figures of training itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slb_autotune.quant import temperature
from slb_autotune.report import figures
from tests.report.figures.runs import rendered, words


def test_schedules_have_a_temperature_and_a_result_each(result):
    figure = rendered(figures.draw_schedules(result))
    left, right = figure.axes
    assert len(left.lines) == len(right.lines) == 3
    assert left.get_yscale() == "log"
    assert "The best run of each schedule" in words(figure)
    assert "validation accuracy (%)" in words(figure)


def test_schedules_without_epochs_are_drawn_by_the_formula(result):
    same = result.trials.assign(T_s=0.01, T_e=10.0)
    figure = rendered(
        figures.draw_schedules(replace(result, trials=same, epochs=result.epochs.iloc[:0]))
    )
    left, _ = figure.axes
    for line in left.lines:
        x, y = line.get_data()
        for place in (0, 37, 100):
            expected = temperature(line.get_label(), place, 100, 0.01, 10.0)
            assert y[place] == pytest.approx(expected)
            assert x[place] == pytest.approx(6 * place / 100)
    assert "T_s = 0.01, T_e = 10." in words(figure)
    assert "No epoch of these runs" in words(figure)


def marked(result, trials):
    """The study with these trials on its front."""
    return replace(
        result, trials=result.trials.assign(on_front=result.trials["trial"].isin(trials))
    )


def test_diagnostics_of_few_trials_are_lines_and_of_many_a_median(result):
    few = rendered(figures.draw_diagnostics(marked(result, [1, 2, 4])))
    assert [len(axes.lines) for axes in few.axes] == [3, 3, 3]
    assert "trial 4" in words(few)
    many = rendered(figures.draw_diagnostics(marked(result, [])))
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
