"""Figures of studies in which something is missing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from slb_autotune.errors import ConfigError
from slb_autotune.report import figures
from tests.report.figures.runs import KINDS, invented_runs, poor, rendered, sensitivities, words
from tests.report.invented import invented_result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "draw",
    [figures.draw_front, figures.draw_hypervolume, figures.draw_bits, figures.draw_response],
)
def test_poor_runs_give_a_figure_or_a_sentence(result, draw, kind):
    figure = rendered(draw(poor(result, kind)))
    drawn = any(axes.axison for axes in figure.axes)
    assert drawn or words(figure).endswith(".")


@pytest.mark.parametrize("kind", KINDS)
def test_poor_runs_give_figures_of_training(result, kind):
    figure = rendered(figures.draw_schedules(poor(result, kind)))
    assert any(axes.axison for axes in figure.axes) or words(figure).endswith(".")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda epochs: epochs.iloc[:0], "No epoch has a gap"),
        (lambda epochs: epochs.assign(flip_rate=np.nan), "No epoch has flips"),
        (lambda epochs: epochs.iloc[:1], "trial 0"),
    ],
)
def test_poor_epochs_give_a_figure_or_a_sentence(result, change, sentence):
    study = replace(
        result,
        trials=result.trials.assign(on_front=False),
        epochs=change(result.epochs),
    )
    assert sentence in words(rendered(figures.draw_diagnostics(study)))


def single_objective():
    return invented_result(invented_runs(6), metrics=("val_accuracy",))


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
        (lambda: figures.draw_front(single_objective()), "two objectives"),
    ],
)
def test_poor_tables_give_a_figure_or_a_sentence(make, sentence):
    assert sentence in words(rendered(make()))


def test_an_unknown_theme_is_refused(result):
    with pytest.raises(ConfigError, match="theme must be one of light, dark; got 'drak'"):
        figures.draw_front(result, "drak")
