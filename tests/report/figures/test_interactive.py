"""The interactive figures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slb_autotune.report import figures
from slb_autotune.report.figures import front_data
from tests.report.figures.runs import KINDS, changed, poor


def checked(figure):
    """Plotly's own check of every name and value, and that JSON can hold it."""
    plotly = pytest.importorskip("plotly.graph_objects")
    json.dumps(figure, allow_nan=False)
    return plotly.Figure(figure)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_the_interactive_front_shows_every_trial_once(result, name):
    figure = figures.interactive_front(result, name)
    checked(figure)
    points = front_data.front_points(result)
    shown = [trial for trace in figure["data"] for trial in trace.get("customdata", [])]
    assert sorted(shown) == sorted(points["trial"])
    names = [trace.get("name") for trace in figure["data"]]
    assert names == [None, "other trials", "uniform bits", "the paper's schedule", "front"]
    assert figure["layout"]["xaxis"]["title"]["text"] == "size (kB)"
    others = figure["data"][1]
    stopped = set(points.loc[points["stopped"], "trial"])
    for trial, symbol in zip(others["customdata"], others["marker"]["symbol"], strict=True):
        assert symbol == ("circle-open" if trial in stopped else "circle")


def test_words_of_others_are_escaped(result):
    config = result.config.model_copy(update={"name": "<b>x</b>"})
    trials = result.trials.assign(source="<script>alert(1)</script>")
    hostile = replace(result, trials=trials, config=config)
    front = figures.interactive_front(hostile)
    volume = figures.interactive_hypervolume(hostile)
    text = json.dumps([front, volume])
    assert "&lt;script&gt;" in text
    assert "<script>" not in text
    assert "<b>x" not in text


def test_the_interactive_hypervolume_is_the_curve(result):
    figure = figures.interactive_hypervolume(result)
    checked(figure)
    curve, level = figure["data"]
    assert curve["y"] == front_data.hypervolume_curve(result)["hypervolume"].tolist()
    assert level["name"] == "uniform bits alone"


@pytest.mark.parametrize("kind", KINDS)
def test_poor_runs_give_interactive_figures(result, kind):
    study = poor(result, kind)
    for draw in (figures.interactive_front, figures.interactive_hypervolume):
        checked(draw(study))
    sentence = checked(figures.interactive_front(changed(study, study.trials, ("val_accuracy",))))
    assert sentence.layout.annotations[0].text == "A front needs two objectives."
