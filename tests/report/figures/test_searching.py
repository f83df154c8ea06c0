"""The figures of how a search went."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from slb_autotune.analysis.budgets import budget_correlations
from slb_autotune.report import figures
from tests.report.figures.runs import (
    changed,
    dot_count,
    dots,
    invented_epochs,
    rendered,
    sensitivities,
    words,
)


def test_the_response_has_log_axes_and_marks_failures(result):
    figure = rendered(figures.draw_response(result))
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == "start temperature $T_s$"
    ended = result.trials["status"].isin(("done", "failed"))
    assert dot_count(axes) == ended.sum()
    assert len(axes.collections) == len(dots(axes)) + 1, "the surface"
    assert "failed" in words(figure)
    assert figure.axes[1].get_ylabel() == "validation accuracy (%)"


def test_a_response_of_few_points_has_no_surface_and_ticks_at_them(result):
    grid = result.trials.assign(T_s=0.01, T_e=[10.0, 100.0] * 20, lr=[0.05, 0.05, 0.2, 0.2] * 10)
    figure = rendered(figures.draw_response(changed(result, grid)))
    axes = figure.axes[0]
    assert dot_count(axes) == 4
    assert len(axes.collections) == len(dots(axes))
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0.05", "0.2"]
    assert "trials at one point" in words(figure)
    assert axes.get_ylabel() == "learning rate"


def test_importance_has_a_bar_an_objective_and_parameter():
    shares = pd.DataFrame(
        {"T_e": [0.6, 0.1], "lr": [0.4, 0.0], "bits": [0.0, 0.9]},
        index=["val_accuracy", "size_bytes"],
    )
    axes = rendered(figures.draw_importance(shares)).axes[0]
    assert len(axes.patches) == 6
    assert max(bar.get_width() for bar in axes.patches) == pytest.approx(90)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["bits", "$T_e$", "lr"]


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


def test_budgets_have_a_line_each_with_intervals(result):
    epochs = invented_epochs(result.trials, compressed=True)
    table = budget_correlations(epochs, "val_accuracy", 6)
    figure = rendered(figures.draw_budgets(table))
    (axes,) = figure.axes
    assert len(axes.containers) == 2
    assert "prefix" in words(figure)
    assert "compressed" in words(figure)
    assert axes.get_ylim()[1] == pytest.approx(1.03)
