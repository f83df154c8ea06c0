"""The front and its hypervolume as Plotly figures: plain dictionaries that JSON can hold.

Plotly itself is needed only to make an HTML file of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

import pandas as pd

from slb_autotune.analysis.result import StudyResult
from slb_autotune.report.figures import front_data
from slb_autotune.report.figures.theme import Theme, find_theme, short, spans
from slb_autotune.report.quantities import axes_of, quantity

_SYMBOLS = {"trial": "circle", "uniform": "square", "paper": "diamond"}


def interactive_front(result: StudyResult, theme: str = "light") -> dict[str, Any]:
    """The front with each trial's configuration under the pointer."""
    look, objectives = find_theme(theme), result.objectives
    if len(objectives.metrics) < 2:
        return _empty("A front needs two objectives.", look)
    points = front_data.front_points(result)
    if points.empty:
        return _empty("No trial has a value for every objective yet.", look)
    x, y = axes_of(objectives)
    line = front_data.front_line(points, x, y)
    shape = "hv" if objectives.sign(x) > 0 else "vh"
    steps = {
        "type": "scatter",
        "mode": "lines",
        "x": (line[x] * quantity(x).scale).tolist(),
        "y": (line[y] * quantity(y).scale).tolist(),
        "line": {"shape": shape, "color": look.colours[0], "width": 2},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    groups = {
        "other trials": points[(points["kind"] == "trial") & ~points["on_front"]],
        "uniform bits": points[points["kind"] == "uniform"],
        "the paper's schedule": points[points["kind"] == "paper"],
        "front": points[(points["kind"] == "trial") & points["on_front"]],
    }
    colours = (look.pale, look.colours[1], look.colours[2], look.colours[0])
    traces = [steps] if len(objectives.metrics) == 2 else []
    for (name, rows), shade in zip(groups.items(), colours, strict=True):
        if not rows.empty:
            traces.append(_trace(result.trials, rows, (x, y), name, shade))
    log = spans((points[x]).tolist(), 4)
    return {
        "data": traces,
        "layout": _layout(quantity(x).axis_label, quantity(y).axis_label, look, log),
    }


def _trace(
    runs: pd.DataFrame, rows: pd.DataFrame, axes: tuple[str, str], name: str, shade: str
) -> dict[str, Any]:
    x, y = axes
    hollow = "-open"
    symbols = [
        _SYMBOLS[kind] + (hollow if stopped else "")
        for kind, stopped in zip(rows["kind"], rows["stopped"], strict=True)
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": (rows[x] * quantity(x).scale).tolist(),
        "y": (rows[y] * quantity(y).scale).tolist(),
        "marker": {"color": shade, "symbol": symbols, "size": 9},
        "text": [_describe(runs.iloc[row], axes) for row in rows["row"]],
        "customdata": [None if pd.isna(trial) else int(trial) for trial in rows["trial"]],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _describe(run: pd.Series[Any], axes: tuple[str, str]) -> str:
    """What a trial was, line by line; text of others is escaped."""
    heading = "trial ?" if pd.isna(run["trial"]) else f"trial {int(run['trial'])}"
    lines = [f"<b>{heading}</b> {escape(str(run['status']))}"]
    for name in axes:
        shown = quantity(name)
        value = short(float(run[name]) * shown.scale)
        lines.append(f"{shown.label}: {value} {shown.unit}".strip())
    if run["schedule"]:
        lines.append(f"schedule: {escape(str(run['schedule']))}")
    known = [name for name in ("T_s", "T_e", "lr") if not pd.isna(run[name])]
    lines += [f"{name}: {short(float(run[name]))}" for name in known]
    if run["bits"]:
        bits = json.loads(run["bits"]).values()
        lines.append("bits: " + " ".join(str(width) for width in bits))
    lines.append(f"from: {escape(str(run['source']))}")
    return "<br>".join(lines)


def interactive_hypervolume(result: StudyResult, theme: str = "light") -> dict[str, Any]:
    """Hypervolume over trials, the trial that raised it under the pointer."""
    look = find_theme(theme)
    curve = front_data.hypervolume_curve(result)
    if curve.empty:
        return _empty("No trial has ended yet.", look)
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": escape(result.name),
            "x": curve["trials"].tolist(),
            "y": curve["hypervolume"].tolist(),
            "line": {"shape": "hv", "color": look.colours[0], "width": 2},
            "text": ["?" if pd.isna(trial) else str(trial) for trial in curve["trial"]],
            "hovertemplate": "after trial %{text}: %{y:.4f}<extra></extra>",
        }
    ]
    level = front_data.uniform_hypervolume(result)
    if level is not None:
        ends = [1, int(curve["trials"].max())]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "uniform bits alone",
                "x": ends,
                "y": [level, level],
                "line": {"dash": "dash", "color": look.quiet, "width": 1.5},
                "hoverinfo": "skip",
            }
        )
    layout = _layout("trials ended", "hypervolume (share of the box)", look, log=False)
    return {"data": traces, "layout": layout}


def interactive_page(title: str, figures: Mapping[str, dict[str, Any]]) -> str | None:
    """Figures as one HTML file that asks for nothing; None where plotly is not installed."""
    try:
        from plotly.io import to_html
    except ImportError:
        return None
    parts = [
        to_html(figure, full_html=False, include_plotlyjs=position == 0, div_id=name)
        for position, (name, figure) in enumerate(figures.items())
    ]
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
    return "\n".join([f"{head}</title></head><body>", *parts, "</body></html>", ""])


def _layout(x: str, y: str, look: Theme, log: bool) -> dict[str, Any]:
    axis = {"gridcolor": look.grid, "zeroline": False, "linecolor": look.pale}
    return {
        "xaxis": {**axis, "title": {"text": x}, "type": "log" if log else "linear"},
        "yaxis": {**axis, "title": {"text": y}},
        "paper_bgcolor": look.paper,
        "plot_bgcolor": look.paper,
        "font": {"color": look.ink, "size": 13},
        "legend": {"orientation": "h", "y": 1.12},
        "margin": {"l": 64, "r": 16, "t": 40, "b": 56},
        "hovermode": "closest",
    }


def _empty(text: str, look: Theme) -> dict[str, Any]:
    layout = _layout("", "", look, log=False)
    hidden = {"visible": False}
    message = {
        "text": text,
        "showarrow": False,
        "xref": "paper",
        "yref": "paper",
        "x": 0.5,
        "y": 0.5,
    }
    return {
        "data": [],
        "layout": {**layout, "xaxis": hidden, "yaxis": hidden, "annotations": [message]},
    }
