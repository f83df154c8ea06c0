"""Figures of training itself: schedules, how weights settle, and their histogram."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slb_autotune.analysis.budgets import final_curves
from slb_autotune.analysis.result import StudyResult
from slb_autotune.analysis.tables import numbers
from slb_autotune.report.figures import curve_data
from slb_autotune.report.figures.search_data import positive
from slb_autotune.report.figures.theme import (
    SIZE,
    SMALL,
    Theme,
    colour,
    dashes,
    find_theme,
    legend,
    log_axis,
    message_figure,
    new_figure,
    note,
    short,
    show_message,
    spans,
    style,
    title,
    typeset,
    whole_numbers,
)
from slb_autotune.report.quantities import quantity

DIAGNOSTICS = ("quantization_gap", "frozen_fraction", "flip_rate")
Groups = list[tuple[str, pd.DataFrame]]  # trial and epochs

_MOST_LINES = 7
_MOST_RIDGES = 12


def draw_schedules(result: StudyResult, theme: str = "light") -> Figure:
    """Temperature over training for each schedule and, beside it, the quality over training."""
    look = find_theme(theme)
    metric = curve_data.epoch_metric(result)
    trials = curve_data.schedule_trials(result.trials, metric)
    if trials.empty:
        return message_figure("No finished run has a temperature schedule to compare.", look)
    curves = curve_data.schedule_curves(trials, result.epochs, metric)
    figure = new_figure(look, (SIZE[0], 3.3))
    left, right = (style(axes, look) for axes in figure.subplots(1, 2))
    names = sorted(trials["schedule"].unique())
    _draw_temperatures(left, names, trials, curves, look)
    if curves["mean"].notna().any():
        _draw_results(right, names, curves, metric, look)
    else:
        show_message(right, f"No epoch of these runs has {quantity(metric).label}.", look)
    note(figure, _schedule_note(trials, curves), look)
    return figure


def _draw_temperatures(
    axes: Axes, names: list[str], trials: pd.DataFrame, curves: pd.DataFrame, look: Theme
) -> None:
    """As it was recorded each epoch; by the formula where nothing was."""
    drawn: list[float] = []
    for index, name in enumerate(names):
        rows = curves[curves["schedule"] == name]
        x, y = rows["epoch"].tolist(), rows["temperature"].tolist()
        if not positive(y):
            x, y = _formula(trials[trials["schedule"] == name].iloc[0])
        drawn += positive(y)
        _line(axes, x, y, name, index, look)
    if spans(drawn, 10):
        log_axis(axes.yaxis, drawn, most=6)
    _epoch_axes(axes, "temperature", look)
    legend(axes, look, loc="lower right")


def _formula(run: pd.Series[float]) -> tuple[list[float], list[float]]:
    """A schedule over training as its definition has it."""
    from slb_autotune.quant.schedules import temperature

    steps, total = 100, 1.0 if pd.isna(run["epochs"]) else float(run["epochs"])
    values = [
        temperature(str(run["schedule"]), i, steps, float(run["T_s"]), float(run["T_e"]))
        for i in range(steps + 1)
    ]
    return [total * i / steps for i in range(steps + 1)], values


def _draw_results(
    axes: Axes, names: list[str], curves: pd.DataFrame, metric: str, look: Theme
) -> None:
    scale = quantity(metric).scale
    for index, name in enumerate(names):
        rows = curves[curves["schedule"] == name]
        if (rows["high"] > rows["low"]).any():
            axes.fill_between(
                rows["epoch"].astype(float),
                rows["low"] * scale,
                rows["high"] * scale,
                color=colour(look, index),
                alpha=0.15,
                linewidth=0,
            )
        _line(axes, rows["epoch"].tolist(), (rows["mean"] * scale).tolist(), name, index, look)
    _epoch_axes(axes, metric, look)


def _line(axes: Axes, x: list[float], y: list[float], name: str, index: int, look: Theme) -> None:
    axes.plot(
        x,
        y,
        color=colour(look, index),
        linestyle=dashes(look, index),
        linewidth=1.7,
        marker="o" if len(x) == 1 else "",
        label=name,
    )


def _epoch_axes(axes: Axes, metric: str, look: Theme) -> None:
    whole_numbers(axes.xaxis)
    axes.set_xlabel("epoch")
    title(axes, quantity(metric).axis_label, look)


def _schedule_note(trials: pd.DataFrame, curves: pd.DataFrame) -> str:
    pairs = trials[["T_s", "T_e"]].drop_duplicates()
    if len(pairs) == 1:
        T_s, T_e = pairs.iloc[0]
        text = f"T_s = {short(T_s)}, T_e = {short(T_e)}."
        count = trials["schedule"].value_counts()
        if (count > 1).any() and curves["mean"].notna().any():
            runs = ", ".join(f"{n} of {name}" for name, n in sorted(count.items()))
            text += f" Mean of runs ({runs}); the band goes from the lowest to the highest."
        return text
    each = [
        f"{row.schedule} {short(float(row.T_s), 3)} to {short(float(row.T_e), 3)}"  # type: ignore[arg-type]
        for row in trials.sort_values("schedule").itertuples()
    ]
    return f"The best run of each schedule: {', '.join(each)}."


def draw_diagnostics(result: StudyResult, theme: str = "light") -> Figure:
    """Gap, frozen weights and flips of the front's members, or of all trials without a front.

    One line per trial, or the median of many.
    """
    look = find_theme(theme)
    epochs, members = result.epochs, result.front["trial"]
    chosen = epochs if members.empty else epochs[epochs["trial"].isin(members)]
    curves = final_curves(chosen)
    known = [name for name in DIAGNOSTICS if np.isfinite(numbers(curves, name)).any()]
    if not known:
        return message_figure("No epoch has a gap, frozen weights or flips to draw.", look)
    groups = [(str(trial), rows) for trial, rows in curves.groupby("trial", sort=True)]
    figure = new_figure(look, (SIZE[0] + 0.8, 3.0))
    panels = figure.subplots(1, len(DIAGNOSTICS))
    for axes, name in zip(panels, DIAGNOSTICS, strict=True):
        style(axes, look)
        if name not in known:
            show_message(axes, f"No epoch has {quantity(name).label}.", look)
            continue
        if len(groups) > _MOST_LINES:
            _draw_spread(axes, groups, curves, name, look)
        else:
            _draw_each(axes, groups, name, look)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        _epoch_axes(axes, name, look)
    handles, labels = panels[DIAGNOSTICS.index(known[0])].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower left",
        ncols=7,
        frameon=False,
        fontsize=SMALL,
        labelcolor=look.ink,
    )
    return figure


def _draw_each(axes: Axes, groups: Groups, name: str, look: Theme) -> None:
    for index, (trial, rows) in enumerate(groups):
        values = (numbers(rows, name) * quantity(name).scale).tolist()
        _line(axes, rows["epoch"].tolist(), values, f"trial {trial}", index, look)


def _draw_spread(
    axes: Axes,
    groups: Groups,
    curves: pd.DataFrame,
    name: str,
    look: Theme,
) -> None:
    scale = quantity(name).scale
    for index, (_, rows) in enumerate(groups):
        axes.plot(
            rows["epoch"].tolist(),
            (numbers(rows, name) * scale).tolist(),
            color=look.pale,
            linewidth=0.6,
            alpha=0.45,
            label=f"each of {len(groups)} trials" if index == 0 else None,
        )
    middle = curve_data.spread_curves(curves, name)
    axes.fill_between(
        middle["epoch"].astype(float),
        middle["low"] * scale,
        middle["high"] * scale,
        color=look.colours[0],
        alpha=0.25,
        linewidth=0,
        label="middle half",
    )
    _line(axes, middle["epoch"].tolist(), (middle["median"] * scale).tolist(), "median", 0, look)


def draw_weight_histogram(
    histograms: Sequence[curve_data.Histogram],
    layer: str = "",
    symbol: str = "W_c",
    theme: str = "light",
) -> Figure:
    """The continuous weights of a layer over training, one ridge per epoch, the first on top."""
    look = find_theme(theme)
    chosen = curve_data.evenly(sorted(histograms, key=lambda item: item[0]), _MOST_RIDGES)
    ridges = [(item[0], found) for item in chosen if (found := curve_data.densities(item))]
    if not ridges:
        return message_figure("No histogram of W_c holds a weight.", look)
    figure = new_figure(look, (SIZE[0], 1.5 + 0.28 * max(4, len(ridges))))
    axes = style(figure.add_subplot(), look)
    step = 1.0
    for position, (_, (edges, heights)) in enumerate(ridges):
        base = -step * position
        tops = base + 0.85 * heights / heights.max()
        depth = position / max(1, len(ridges) - 1)
        axes.stairs(
            tops,
            edges,
            baseline=base,
            fill=True,
            facecolor=look.colours[0],
            edgecolor=look.paper,
            alpha=0.35 + 0.55 * depth,
            linewidth=0,
            zorder=position + 2,
        )
        axes.stairs(
            tops, edges, baseline=None, color=look.ink, linewidth=0.7, zorder=position + 2.5
        )
    axes.set_yticks(
        [-step * i for i in range(len(ridges))], [f"epoch {epoch}" for epoch, _ in ridges]
    )
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_ylim(-step * (len(ridges) - 1) - 0.15, 1.0)
    axes.set_xlabel(typeset(symbol))
    title(axes, f"continuous weights of {layer}" if layer else "continuous weights", look)
    note(figure, "Each ridge is the density of the weights, scaled to its own peak.", look)
    return figure
