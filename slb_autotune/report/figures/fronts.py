"""Figures of what a study found: the front, its hypervolume, and the bits of its members."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from slb_autotune.analysis.result import StudyResult
from slb_autotune.analysis.tables import numbers
from slb_autotune.config.metrics import COST, Objectives
from slb_autotune.report.figures import front_data
from slb_autotune.report.figures.theme import (
    SIZE,
    SMALL,
    Theme,
    find_theme,
    halo,
    legend_above,
    log_axis,
    message_figure,
    new_axes,
    note,
    plain,
    spans,
    style,
    whole_numbers,
)
from slb_autotune.report.quantities import axes_of, quantity

MARKERS = {"trial": "o", "uniform": "s", "paper": "D"}
_SIZES = {"trial": 22, "uniform": 34, "paper": 42}


def draw_front(result: StudyResult, theme: str = "light") -> Figure:
    """Quality against cost: the front joined by steps, the rest pale, stopped trials hollow."""
    look, objectives = find_theme(theme), result.objectives
    x, y = axes_of(objectives)
    if len(objectives.metrics) < 2:
        label = quantity(y).label
        return message_figure(f"A front needs two objectives; this study has one, {label}.", look)
    points = front_data.front_points(result)
    if points.empty:
        return message_figure(
            "No trial has a value for every objective yet: there is no front.", look
        )
    scaled = points.assign(**{name: points[name] * quantity(name).scale for name in (x, y)})
    figure, axes = new_axes(look)
    _draw_trials(axes, scaled, x, y, look)
    _draw_steps(axes, scaled, objectives, look)
    _label_widths(axes, scaled, x, y, objectives.sign(y), look)
    across = scaled[x].tolist()
    if spans(across, 4):
        log_axis(axes.xaxis, across)
    axes.margins(0.06)
    notes = [_cut_off(axes, scaled, y, objectives.sign(y))]
    axes.set_xlabel(plain(quantity(x).axis_label))
    axes.set_ylabel(plain(quantity(y).axis_label))
    legend_above(axes, look, columns=5)
    others = [quantity(name).label for name in objectives.metrics if name not in (x, y)]
    if others:
        notes.append(f"The front is also that of {', '.join(others)}, not shown.")
    note(figure, " ".join(notes).strip(), look)
    return figure


def _draw_trials(axes: Axes, points: pd.DataFrame, x: str, y: str, look: Theme) -> None:
    names = {"trial": "other trials", "uniform": "uniform bits", "paper": "the paper's schedule"}
    colours = {"trial": look.pale, "uniform": look.colours[1], "paper": look.colours[2]}
    for kind, marker in MARKERS.items():
        rows = points[(points["kind"] == kind) & ~points["stopped"]]
        if kind == "trial":
            rows = rows[~rows["on_front"]]
        if rows.empty:
            continue
        member = rows["on_front"].to_numpy(dtype=bool)
        axes.scatter(
            rows[x],
            rows[y],
            s=_SIZES[kind],
            marker=marker,
            color=colours[kind],
            edgecolors=np.where(member, look.colours[0], look.paper).tolist(),
            linewidths=np.where(member, 1.6, 0.6).tolist(),
            label=names[kind],
            zorder=2 if kind == "trial" else 4,
        )
    stopped = points[points["stopped"]]
    if not stopped.empty:
        axes.scatter(
            stopped[x],
            stopped[y],
            s=_SIZES["trial"],
            facecolors="none",
            edgecolors=look.pale,
            linewidths=0.9,
            label="stopped early",
            zorder=1.5,
        )


def _draw_steps(axes: Axes, points: pd.DataFrame, objectives: Objectives, look: Theme) -> None:
    """The front; between two members only what the worse of them reaches is reached.

    That of three objectives or more has no such line in two.
    """
    x, y = axes_of(objectives)
    members = front_data.front_line(points, x, y)
    if members.empty:
        return
    axes.plot(
        members[x],
        members[y],
        drawstyle="steps-post" if objectives.sign(x) > 0 else "steps-pre",
        linestyle="-" if len(objectives.metrics) == 2 else "",
        linewidth=1.3,
        color=look.colours[0],
        marker="o",
        markersize=5.6,
        markeredgecolor=look.paper,
        markeredgewidth=0.6,
        label="front",
        zorder=3,
    )


def _cut_off(axes: Axes, points: pd.DataFrame, y: str, sign: float) -> str:
    """Leave out trials far from the front, which would squeeze it flat, and say how many."""
    limit = front_data.worst_shown(points, y, sign)
    values = points[y]
    outside = sign * values > sign * limit
    if not outside.any():
        return ""
    room = 0.06 * (values[~outside].max() - values[~outside].min())
    if sign < 0:
        axes.set_ylim(limit, values.max() + room)
        return f"{outside.sum()} of {len(points)} trials lie below the axis."
    axes.set_ylim(values.min() - room, limit)
    return f"{outside.sum()} of {len(points)} trials lie above the axis."


def _label_widths(
    axes: Axes, points: pd.DataFrame, x: str, y: str, sign: float, look: Theme
) -> None:
    """The bit-width beside the best of each uniform allocation."""
    uniform = points[(points["kind"] == "uniform") & ~points["stopped"]]
    best = uniform.sort_values(y, ascending=sign > 0, kind="stable")
    for row in best.drop_duplicates("width").itertuples():
        at = (getattr(row, x), getattr(row, y))
        axes.annotate(
            f"{row.width} bit",
            at,
            xytext=(6, -4),
            textcoords="offset points",
            va="top",
            fontsize=SMALL,
            color=look.ink,
            path_effects=halo(look),
            zorder=6,
        )


def draw_hypervolume(result: StudyResult, theme: str = "light") -> Figure:
    """Hypervolume over trials, and that of the uniform allocations as a level to beat."""
    look = find_theme(theme)
    curve = front_data.hypervolume_curve(result)
    if not (curve["hypervolume"] > 0).any():
        return message_figure(
            "No trial is better than the reference point: hypervolume is 0.", look
        )
    figure, axes = new_axes(look)
    axes.step(
        curve["trials"],
        curve["hypervolume"],
        where="post",
        color=look.colours[0],
        linewidth=1.8,
        marker="o" if len(curve) == 1 else None,
        label=plain(result.name),
    )
    level = front_data.uniform_hypervolume(result)
    if level is not None:
        axes.axhline(
            level, color=look.quiet, linestyle="--", linewidth=1.2, label="uniform bits alone"
        )
    whole_numbers(axes.xaxis)
    axes.set_xlabel("trials ended")
    axes.set_ylabel("hypervolume (share of the box)")
    axes.ticklabel_format(axis="y", useOffset=False)
    legend_above(axes, look)
    return figure


def draw_bits(result: StudyResult, theme: str = "light") -> Figure:
    """The bits of every layer of every member of the front, from the smallest to the largest."""
    look = find_theme(theme)
    table = front_data.front_bits(result)
    if table.empty:
        return message_figure("No member of the front has the bits of its layers on record.", look)
    quality = result.objectives.quality or result.objectives.metrics[0]
    width, height = 2.2 + 0.5 * len(table.columns), 1.4 + 0.22 * len(table)
    figure, axes = new_axes(look, (min(SIZE[0], max(3.6, width)), max(2.2, height)))
    style(axes, look, grid=False)
    axes.grid(False)
    _draw_cells(axes, table, look)
    rows = [int(row) for row in table.columns]
    _member_ticks(axes, _cells(result, rows, COST), quantity(COST).axis_label)
    axes.set_yticks(range(len(table)), [plain(str(name)) for name in table.index])
    top = style(axes.secondary_xaxis("top"), look, grid=False)  # type: ignore[arg-type]
    _member_ticks(top, _cells(result, rows, quality), quantity(quality).axis_label)
    for part in (axes, top):
        for spine in part.spines.values():
            spine.set_visible(False)
    return figure


def _draw_cells(axes: Axes, table: pd.DataFrame, look: Theme) -> None:
    """One square per layer and member, coloured by the order of its bits, with their number."""
    values = table.to_numpy()
    widths = np.unique(values[~np.isnan(values)])
    shades = colormaps[look.bits](np.linspace(0.1, 0.85, max(2, len(widths))))
    picture = np.ones((*values.shape, 3)) * to_rgb(look.paper)
    for shade, width in zip(shades, widths, strict=False):
        picture[values == width] = shade[:3]
    axes.imshow(picture, aspect="auto", interpolation="nearest")
    for (row, column), value in np.ndenumerate(values):
        dark = picture[row, column] @ (0.299, 0.587, 0.114) < 0.55
        text = "" if np.isnan(value) else f"{value:.0f}"
        shown = "#ffffff" if dark else "#111111"
        axes.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=shown)
    axes.set_xticks(np.arange(values.shape[1] + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(values.shape[0] + 1) - 0.5, minor=True)
    axes.grid(True, which="minor", color=look.paper, linewidth=1.5)
    axes.set_axisbelow(False)


def _cells(result: StudyResult, rows: list[int], column: str) -> list[str]:
    values = numbers(result.trials, column)[rows] * quantity(column).scale
    digits = next((d for d in (1, 2) if len({f"{v:.{d}f}" for v in values}) == len(values)), 1)
    return ["?" if np.isnan(value) else f"{value:,.{digits}f}" for value in values]


def _member_ticks(axes: Axes, values: list[str], label: str) -> None:
    axes.set_xticks(range(len(values)), values)
    axes.set_xlabel(label)
