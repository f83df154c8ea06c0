"""How figures look: two themes, axes and numbers, and how figures are saved."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import Stroke, withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from slb_autotune.errors import ConfigError, nearest

DPI = 200
SIZE = (6.4, 4.0)

SMALL = 8.0
NORMAL = 9.0

BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, YELLOW = "#E69F00", "#56B4E9", "#F0E442"


@dataclass(frozen=True)
class Theme:
    """Colours of a figure: those of series are Okabe and Ito's, that all eyes can tell apart."""

    paper: str
    ink: str
    quiet: str  # secondary text
    pale: str  # what stays in the background
    grid: str
    colours: tuple[str, ...]
    bits: str  # colour map from few to many, starting near the paper


THEMES = {
    "light": Theme(
        paper="#ffffff",
        ink="#1b1e23",
        quiet="#5b626d",
        pale="#b4bac4",
        grid="#e6e8ec",
        colours=(BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, "#000000"),
        bits="YlGnBu",
    ),
    "dark": Theme(
        paper="#14171c",
        ink="#e8eaed",
        quiet="#a5acb8",
        pale="#5d6572",
        grid="#2a3039",
        colours=(SKY, ORANGE, "#2bbd95", PURPLE, YELLOW, VERMILION, "#ffffff"),
        bits="YlGnBu_r",
    ),
}


def plain(text: str) -> str:
    """Words that nobody reads as a formula."""
    return text.replace("$", r"\$")


def typeset(text: str) -> str:
    """The paper's symbols with their indices lowered: T_s, T_e, W_c, W_q."""
    symbols = r"\|W_q - W_c\||\b[TW]_[a-z]\b"
    return re.sub(symbols, lambda found: f"${found[0]}$", plain(text))


def find_theme(name: str) -> Theme:
    """A theme by its name."""
    if name not in THEMES:
        raise ConfigError(f"theme must be one of light, dark; got {name!r}", nearest(name, THEMES))
    return THEMES[name]


def new_figure(theme: Theme, size: tuple[float, float] = SIZE) -> Figure:
    """An empty figure of the theme's paper that lays itself out without overlaps."""
    figure = Figure(figsize=size, dpi=DPI, facecolor=theme.paper)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    return figure


def new_axes(theme: Theme, size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = new_figure(theme, size)
    return figure, style(figure.add_subplot(), theme)


def style(axes: Axes, theme: Theme, *, grid: bool = True) -> Axes:
    """The theme's quiet axes: no box, a faint grid, ticks without marks."""
    axes.set_facecolor(theme.paper)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.pale)
        spine.set_linewidth(0.8)
    axes.tick_params(
        which="both", length=0, labelsize=SMALL, labelcolor=theme.ink, color=theme.pale
    )
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set(color=theme.ink, fontsize=NORMAL)
    if grid:
        axes.grid(True, color=theme.grid, linewidth=0.8)
        axes.set_axisbelow(True)
    return axes


def title(axes: Axes, text: str, theme: Theme, **options: Any) -> None:
    """A heading over the left end of the axes."""
    axes.set_title(typeset(text), loc="left", fontsize=NORMAL, color=theme.ink, pad=8, **options)


def legend(axes: Axes, theme: Theme, **options: Any) -> None:
    """A legend without a frame, where anything has a label."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        given = {"frameon": False, "fontsize": SMALL, "labelcolor": theme.ink, **options}
        axes.legend(handles, labels, **given)


def legend_above(axes: Axes, theme: Theme, columns: int = 4) -> None:
    """A legend in rows over the axes, where it can cover no point."""
    legend(
        axes,
        theme,
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=columns,
        borderaxespad=0.3,
        handletextpad=0.5,
        columnspacing=1.4,
    )


def halo(theme: Theme) -> list[Stroke]:
    """A rim of paper around text, so that it can be read over points."""
    return [withStroke(linewidth=2.5, foreground=theme.paper)]


def note(figure: Figure, text: str, theme: Theme) -> None:
    """A line under the figure that says how to read it, wrapped to its width."""
    if not text:
        return
    width = int(figure.get_size_inches()[0] * 17)
    figure.supxlabel(
        typeset(textwrap.fill(text, width)), x=0.01, ha="left", fontsize=SMALL, color=theme.quiet
    )


def show_message(axes: Axes, text: str, theme: Theme) -> None:
    """A sentence in place of a chart, where there is nothing to draw."""
    axes.set_axis_off()
    width = axes.get_position().width * axes.get_figure(root=True).get_size_inches()[0]  # type: ignore[union-attr]
    message = typeset(textwrap.fill(text, max(20, int(width * 13))))
    axes.text(
        0.5,
        0.5,
        message,
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=NORMAL + 1,
        color=theme.quiet,
        linespacing=1.5,
    )


def message_figure(text: str, theme: Theme) -> Figure:
    """A figure that says what is missing."""
    figure = new_figure(theme, (SIZE[0], 1.6))
    show_message(figure.add_subplot(), text, theme)
    return figure


def colour(theme: Theme, index: int) -> str:
    """The colour of a series; they come round again after seven."""
    return theme.colours[index % len(theme.colours)]


def dashes(theme: Theme, index: int) -> str:
    """The line of a series: whole for the first seven, then dashed, then dotted."""
    return ("-", "--", ":")[index // len(theme.colours) % 3]


def short(value: float, digits: int = 4) -> str:
    """12.7, 0.01, 1,000 or 1e-5: as few characters as a reader needs."""
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return re.sub(
        r"e([+-])0*", lambda found: f"e{found[1]}".removesuffix("+"), f"{value:.{digits}g}"
    )


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers between two positive ends: decades, or steps of 1-2-5 or finer if few fit."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found: list[float] = []
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [float(f"{s}e{e}") for e in range(first, last + 1) for s in steps]
        inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(inside) > most:
            stride = math.ceil(len(inside) / most)
            return found if len(found) >= 3 else inside[::stride]
        found = inside
    return found


def log_axis(axis: Axis, values: Sequence[float], *, most: int = 7, margin: float = 0.06) -> None:
    """A log axis around positive values with plain numbers at round values."""
    low, high = min(values), max(values)
    room = (high / low) ** margin if high > low else 1.5
    low, high = low / room, high * room
    axes: Any = axis.axes
    if axis is axes.xaxis:
        axes.set_xscale("log")
        axes.set_xlim(low, high)
    else:
        axes.set_yscale("log")
        axes.set_ylim(low, high)
    ticks = log_ticks(low, high, most)
    axis.set_major_locator(
        FixedLocator(ticks) if len(ticks) > 1 else MaxNLocator(5, steps=[1, 2, 2.5, 5])
    )
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def spans(values: Sequence[float], ratio: float) -> bool:
    """Whether positive values reach so far that a log axis shows them better."""
    return len(values) > 0 and min(values) > 0 and max(values) / min(values) >= ratio


def whole_numbers(axis: Axis) -> None:
    """Ticks at whole numbers alone: epochs and trials come in ones."""
    axis.set_major_locator(MaxNLocator(7, integer=True, min_n_ticks=1))


def svg_text(figure: Figure, name: str) -> str:
    """The figure as SVG: the same figure and name give the same bytes.

    Every id begins with the name, so that several figures can stand in one page.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    prefix = re.sub(r"[^A-Za-z0-9_-]", "-", name)
    return re.sub(r'((?: id="|href="#|url\(#))', rf"\g<1>{prefix}-", text)


def save(figure: Figure, path: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write `path` with .png and with .svg at its end; the files that were written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_name(f"{path.name}.{name}") for name in formats]
    for file in written:
        if file.suffix == ".png":
            figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
            figure.set_layout_engine("none")  # the SVG takes the layout that the PNG has
        else:
            file.write_text(svg_text(figure, path.name), encoding="utf-8", newline="\n")
    return written
