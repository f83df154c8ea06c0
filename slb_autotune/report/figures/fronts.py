"""Figures of what a study found: the front, its hypervolume, and the bits of its members."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from slb_autotune.errors import ConfigError
from slb_autotune.report.figures import compute
from slb_autotune.report.figures.theme import (
    SIZE,
    SMALL,
    Theme,
    colour,
    dashes,
    find_theme,
    halo,
    legend_above,
    log_axis,
    new_axes,
    note,
    plain,
    quantity,
    sentence,
    spans,
    style,
    whole_numbers,
)

MARKERS = {"trial": "o", "uniform": "s", "paper": "D"}
_SIZES = {"trial": 22, "uniform": 34, "paper": 42}


def draw_front(runs: pd.DataFrame, objectives: Mapping[str, str], theme: str = "light") -> Figure:
    """Quality against cost: the front joined by steps, the rest pale, stopped trials hollow."""
    look = find_theme(theme)
    if len(objectives) < 2:
        return sentence(_one_objective(objectives), look)
    points = compute.front_points(runs, objectives)
    if points.empty:
        return sentence("No trial has a value for every objective yet: there is no front.", look)
    x, y = compute.axes_of(objectives)
    scaled = points.assign(**{name: points[name] * quantity(name).scale for name in (x, y)})
    figure, axes = new_axes(look)
    _draw_trials(axes, scaled, x, y, look)
    _draw_steps(axes, scaled, objectives, look)
    _label_widths(axes, scaled, x, y, objectives[y], look)
    across = scaled[x].tolist()
    if spans(across, 4):
        log_axis(axes.xaxis, across)
    axes.margins(0.06)
    words = [_cut_off(axes, scaled, y, objectives[y])]
    axes.set_xlabel(plain(quantity(x).label))
    axes.set_ylabel(plain(quantity(y).label))
    legend_above(axes, look, columns=5)
    if len(objectives) > 2:
        others = [quantity(name).words for name in objectives if name not in (x, y)]
        words.append(f"The front is also that of {', '.join(others)}, not shown.")
    note(figure, " ".join(words).strip(), look)
    return figure


def _one_objective(objectives: Mapping[str, str]) -> str:
    if not objectives:
        raise ConfigError("objectives must name at least one metric; got none")
    words = quantity(next(iter(objectives))).words
    return f"A front needs two objectives; this study has one, {words}."


def _draw_trials(axes: Axes, points: pd.DataFrame, x: str, y: str, look: Theme) -> None:
    names = {"trial": "other trials", "uniform": "uniform bits", "paper": "the paper's schedule"}
    colours = {"trial": look.pale, "uniform": look.colours[1], "paper": look.colours[2]}
    for kind, marker in MARKERS.items():
        rows = points[(points["kind"] == kind) & ~points["stopped"]]
        if kind == "trial":
            rows = rows[~rows["on_front"]]
        if rows.empty:
            continue
        axes.scatter(
            rows[x],
            rows[y],
            s=_SIZES[kind],
            marker=marker,
            color=colours[kind],
            edgecolors=look.paper,
            linewidths=0.6,
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


def _draw_steps(
    axes: Axes, points: pd.DataFrame, objectives: Mapping[str, str], look: Theme
) -> None:
    """The front; between two members only what the worse of them reaches is reached.

    That of three objectives or more has no such line in two.
    """
    x, y = compute.axes_of(objectives)
    members = compute.front_line(points, x, y)
    if members.empty:
        return
    axes.plot(
        members[x],
        members[y],
        drawstyle="steps-post" if objectives[x] == "minimize" else "steps-pre",
        linestyle="-" if len(objectives) == 2 else "",
        linewidth=1.3,
        color=look.colours[0],
        marker="o",
        markersize=5.6,
        markeredgecolor=look.paper,
        markeredgewidth=0.6,
        label="front",
        zorder=3,
    )


def _cut_off(axes: Axes, points: pd.DataFrame, y: str, direction: str) -> str:
    """Leave out trials far from the front, which would squeeze it flat, and say how many."""
    limit = compute.worst_shown(points, y, direction)
    values = points[y]
    outside = values < limit if direction == "maximize" else values > limit
    if not outside.any():
        return ""
    room = 0.06 * (values[~outside].max() - values[~outside].min())
    if direction == "maximize":
        axes.set_ylim(limit, values.max() + room)
        return f"{outside.sum()} of {len(points)} trials lie below the axis."
    axes.set_ylim(values.min() - room, limit)
    return f"{outside.sum()} of {len(points)} trials lie above the axis."


def _label_widths(
    axes: Axes, points: pd.DataFrame, x: str, y: str, direction: str, look: Theme
) -> None:
    """The bit-width beside the best of each uniform allocation."""
    uniform = points[(points["kind"] == "uniform") & ~points["stopped"]]
    best = uniform.sort_values(y, ascending=direction == "minimize", kind="stable")
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


def draw_hypervolume(
    runs: pd.DataFrame,
    objectives: Mapping[str, str],
    theme: str = "light",
    reference: Mapping[str, float] | None = None,
) -> Figure:
    """Hypervolume over trials, and that of the uniform allocations as a level to beat."""
    look = find_theme(theme)
    if not objectives:
        raise ConfigError("objectives must name at least one metric; got none")
    curve = compute.hypervolume_curve(runs, objectives, reference)
    if curve.empty or not (curve["hypervolume"] > 0).any():
        return sentence("No trial is better than the reference point: hypervolume is 0.", look)
    figure, axes = new_axes(look)
    for index, (study, rows) in enumerate(curve.groupby("study", sort=False)):
        axes.step(
            rows["trials"],
            rows["hypervolume"],
            where="post",
            color=colour(look, index),
            linestyle=dashes(look, index),
            linewidth=1.8,
            marker="o" if len(rows) == 1 else None,
            label=plain(str(study)) or "all results",
        )
    level = compute.uniform_hypervolume(runs, objectives, reference)
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


def draw_bits(runs: pd.DataFrame, objectives: Mapping[str, str], theme: str = "light") -> Figure:
    """The bits of every layer of every member of the front, from the smallest to the largest."""
    look = find_theme(theme)
    if not objectives:
        raise ConfigError("objectives must name at least one metric; got none")
    table = compute.front_bits(runs, objectives)
    if table.empty:
        return sentence("No member of the front says the bits of its layers.", look)
    quality = compute.axes_of({**objectives, "size_bytes": "minimize"})[1]
    width, height = 2.2 + 0.5 * len(table.columns), 1.4 + 0.22 * len(table)
    figure, axes = new_axes(look, (min(SIZE[0], max(3.6, width)), max(2.2, height)))
    style(axes, look, grid=False)
    axes.grid(False)
    _draw_cells(axes, table, look)
    rows = [int(row) for row in table.columns]
    _member_ticks(axes, _cells(runs, rows, "size_bytes"), quantity("size_bytes").label)
    axes.set_yticks(range(len(table)), [plain(str(name)) for name in table.index])
    top = style(axes.secondary_xaxis("top"), look, grid=False)  # type: ignore[arg-type]
    _member_ticks(top, _cells(runs, rows, quality), quantity(quality).label)
    for part in (axes, top):
        for spine in part.spines.values():
            spine.set_visible(False)
    return figure


def _draw_cells(axes: Axes, table: pd.DataFrame, look: Theme) -> None:
    """A square a layer and member, coloured by the order of its bits, with their number."""
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


def _cells(runs: pd.DataFrame, rows: list[int], column: str) -> list[str]:
    values = compute.numbers(runs, column)[rows] * quantity(column).scale
    digits = next((d for d in (1, 2) if len({f"{v:.{d}f}" for v in values}) == len(values)), 1)
    return ["?" if np.isnan(value) else f"{value:,.{digits}f}" for value in values]


def _member_ticks(axes: Axes, words: list[str], label: str) -> None:
    axes.set_xticks(range(len(words)), words)
    axes.set_xlabel(label)
