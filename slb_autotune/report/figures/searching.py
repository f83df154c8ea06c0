"""Figures of how a search went: responses, importance, sensitivity, small budgets."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.path import Path

from slb_autotune.analysis.result import StudyResult
from slb_autotune.report.figures import search_data
from slb_autotune.report.figures.theme import (
    SIZE,
    SMALL,
    Theme,
    colour,
    dashes,
    find_theme,
    legend_above,
    log_axis,
    message_figure,
    new_axes,
    note,
    plain,
    short,
    spans,
    style,
    typeset,
    whole_numbers,
)
from slb_autotune.report.quantities import quantity

_LOG_RATIO = 8.0
_FEW_VALUES = 6
_MAP = "viridis"


def draw_response(result: StudyResult, theme: str = "light") -> Figure:
    """The first objective over the first two searched numbers that vary."""
    look = find_theme(theme)
    names = search_data.searched_numbers(result.trials)
    if len(names) < 2:
        found = f"only {names[0]} varies" if names else "none varies"
        return message_figure(f"A response surface needs two searched numbers; {found}.", look)
    objective = result.objectives.metrics[0]
    x, y = names[:2]
    points = search_data.response_points(result.trials, objective, x, y)
    known = points.dropna(subset=["mean"])
    if known.empty:
        return message_figure(f"No finished trial has {quantity(objective).label}.", look)
    figure, axes = new_axes(look)
    logs = spans(points["x"].tolist(), 2), spans(points["y"].tolist(), 2)
    _draw_surface(figure, axes, points, logs, objective, look)
    for axis, column, log in ((axes.xaxis, "x", logs[0]), (axes.yaxis, "y", logs[1])):
        _parameter_axis(axis, points[column].tolist(), log)
    axes.margins(0.08)
    axes.set_xlabel(typeset(quantity(x).axis_label))
    axes.set_ylabel(typeset(quantity(y).axis_label))
    return figure


def _parameter_axis(axis: Axis, values: list[float], log: bool) -> None:
    """A log axis where it can be one; ticks at the values themselves where there are few."""
    if log:
        log_axis(axis, values, margin=0.08)
    few = sorted(set(values))
    if len(few) <= _FEW_VALUES:
        axis.set_ticks(few, [short(value) for value in few])


def _draw_background(
    axes: Axes, surface: search_data.Surface | None, ends: tuple[float, float], look: Theme
) -> None:
    """The surface in washed-out colours, so that the trials stand out on it."""
    if surface is None or np.ptp(surface.heights) == 0:
        return
    shades = colormaps[_MAP](np.linspace(0, 1, 24))[:, :3]
    washed = ListedColormap(0.5 * shades + 0.5 * np.array(to_rgb(look.paper)))
    filled = axes.contourf(
        surface.x,
        surface.y,
        surface.heights,
        levels=np.linspace(*ends, 13),
        cmap=washed,
        vmin=ends[0],
        vmax=ends[1],
        zorder=0,
    )
    filled.set_edgecolor("face")
    filled.set_clip_path(Path(surface.hull), transform=axes.transData)
    axes.grid(False)


def _draw_surface(
    figure: Figure,
    axes: Axes,
    points: pd.DataFrame,
    logs: tuple[bool, bool],
    objective: str,
    look: Theme,
) -> None:
    shown = quantity(objective)
    points = points.assign(mean=points["mean"] * shown.scale)
    known, failed = points.dropna(subset=["mean"]), points[points["mean"].isna()]
    low, high = known["mean"].min(), known["mean"].max()
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    _draw_background(axes, search_data.surface(points, logs), (low, high), look)
    repeated = (points["count"] > 1).any()
    dots = axes.scatter(
        known["x"],
        known["y"],
        c=known["mean"],
        s=24 + 8 * np.sqrt(known["count"] - 1),
        cmap=_MAP,
        vmin=low,
        vmax=high,
        edgecolors=look.ink,
        linewidths=0.5,
        zorder=3,
    )
    if not failed.empty:
        axes.scatter(
            failed["x"],
            failed["y"],
            marker="x",
            s=26,
            color=look.quiet,
            linewidths=1.2,
            label="failed",
            zorder=3,
        )
        legend_above(axes, look)
    bar = figure.colorbar(dots, ax=axes, pad=0.02)
    style(bar.ax, look, grid=False)
    bar.outline.set_visible(False)
    bar.set_label(
        ("mean " if repeated else "") + shown.axis_label, color=look.ink, fontsize=SMALL + 1
    )
    if repeated:
        counts = points["count"]
        same = f"Each dot is the mean of {counts.iloc[0]} trials at one point."
        larger = "Larger dots are the mean of more trials at one point."
        note(figure, same if counts.nunique() == 1 else larger, look)


def draw_importance(shares: pd.DataFrame, theme: str = "light") -> Figure:
    """How much each parameter mattered: one row per objective in, grouped bars out."""
    look = find_theme(theme)
    table = search_data.top_importances(shares) if shares.size else shares
    if table.empty or not (table.to_numpy() > 0).any():
        return message_figure(
            "No parameter has an importance: too few trials, or none varied.", look
        )
    count, positions = len(table), np.arange(len(table.columns))
    height = 1.3 + len(positions) * (0.11 + 0.1 * count)
    figure, axes = new_axes(look, (SIZE[0], max(2.4, height)))
    thickness = 0.78 / count
    for index, (objective, row) in enumerate(table.iterrows()):
        offset = (index - (count - 1) / 2) * thickness
        axes.barh(
            positions + offset,
            row.to_numpy() * 100,
            thickness * 0.92,
            color=colour(look, index),
            label=plain(quantity(str(objective)).label),
        )
    axes.set_yticks(positions, [typeset(str(name)) for name in table.columns])
    axes.set_ylim(len(positions) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.set_xlim(left=0)
    axes.set_xlabel("share of importance (%)")
    legend_above(axes, look, columns=3)
    return figure


def draw_sensitivity(table: pd.DataFrame, theme: str = "light") -> Figure:
    """What each layer alone costs at each width: columns `layer`, `bits`, `cost`."""
    look = find_theme(theme)
    points = search_data.sensitivity_points(table)
    if points.empty:
        return message_figure("No layer was measured below 32 bits.", look)
    layers = list(dict.fromkeys(points["layer"]))
    figure, axes = new_axes(look, (SIZE[0], max(2.4, 1.3 + 0.21 * len(layers))))
    finite = search_data.positive(points["cost"])
    log = spans(finite, 20)
    if log:
        log_axis(axes.xaxis, finite, margin=0.08)
    left, right = axes.get_xlim() if log else _linear_ends(points)
    row_of = {layer: index for index, layer in enumerate(layers)}
    for index, (bits, rows) in enumerate(points.groupby("bits", sort=True)):
        shown = np.isfinite(rows["cost"]) & ((rows["sign"] == 1) | (not log))
        heights, shade = rows["layer"].map(row_of), colour(look, index)
        axes.scatter(
            rows["cost"][shown], heights[shown], s=26, color=shade, label=f"{bits} bit", zorder=3
        )
        broken = np.isinf(rows["cost"])
        _draw_at_edge(axes, left, heights[~shown & ~broken], "o", shade)
        _draw_at_edge(axes, right, heights[broken], ">", shade)
    axes.set_xlim(left, right)
    axes.set_yticks(range(len(layers)), [plain(layer) for layer in layers])
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.tick_params(axis="y", pad=8)
    axes.set_xlabel("rise of the validation loss")
    legend_above(axes, look, columns=6)
    _sensitivity_note(figure, points, log, look)
    return figure


def _draw_at_edge(axes: Axes, x: float, heights: pd.Series[int], marker: str, shade: str) -> None:
    """Hollow marks for what the axis cannot show."""
    axes.scatter(
        np.full(len(heights), x),
        heights,
        s=26,
        marker=marker,
        facecolors="none",
        edgecolors=shade,
        clip_on=False,
        zorder=3,
    )


def _linear_ends(points: pd.DataFrame) -> tuple[float, float]:
    finite = points["cost"][np.isfinite(points["cost"])]
    low, high = (min(0.0, finite.min()), max(0.0, finite.max())) if len(finite) else (0.0, 1.0)
    room = 0.06 * (high - low) or 0.5
    return low - room, high + room


def _sensitivity_note(figure: Figure, points: pd.DataFrame, log: bool, look: Theme) -> None:
    notes = []
    if log and (points["sign"] == 0).any():
        notes.append("Hollow at the left edge: the loss did not rise.")
    if np.isinf(points["cost"]).any():
        notes.append("Hollow at the right edge: the network broke.")
    if notes:
        note(figure, " ".join(notes), look)


def draw_budgets(correlations: pd.DataFrame, theme: str = "light") -> Figure:
    """How well small budgets rank trials, from a table as `budget_correlations` gives."""
    look = find_theme(theme)
    known = correlations.dropna(subset=["epochs", "spearman"])
    if known.empty:
        return message_figure(
            "Too few trials went to the end to compare small budgets with it.", look
        )
    figure, axes = new_axes(look)
    for index, (budget, rows) in enumerate(known.groupby("budget", sort=True)):
        ordered = rows.sort_values("epochs")
        middle = ordered["spearman"].astype(float)
        ends = np.stack([middle - ordered["low"], ordered["high"] - middle]).astype(float)
        axes.errorbar(
            ordered["epochs"].astype(float),
            middle,
            yerr=np.clip(np.nan_to_num(ends), 0, None),
            color=colour(look, index),
            linestyle=dashes(look, index),
            marker="os^D"[index % 4],
            markersize=5,
            linewidth=1.5,
            elinewidth=1.0,
            capsize=3,
            label=plain(str(budget)),
        )
    epochs = known["epochs"].astype(float).tolist()
    if spans(epochs, _LOG_RATIO):
        log_axis(axes.xaxis, epochs)
    else:
        whole_numbers(axes.xaxis)
        axes.margins(x=0.08)
    bottom = np.nanmin([known["spearman"].min(), known["low"].min(), 0.0])
    axes.set_ylim(max(-1.03, bottom - 0.05), 1.03)
    axes.set_xlabel("epochs of the small budget")
    axes.set_ylabel("rank correlation with the end (Spearman)")
    legend_above(axes, look)
    return figure
