"""The strip of pictures of super-resolution: the first whole, then the same detail of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray

from slb_autotune.config.metrics import METRICS
from slb_autotune.errors import ConfigError
from slb_autotune.report.figures.theme import (
    SIZE,
    SMALL,
    Theme,
    find_theme,
    message_figure,
    new_figure,
    note,
    plain,
)

Picture = tuple[str, ArrayLike, float | None]
Box = tuple[int, int, int, int]


def draw_strip(
    pictures: Sequence[Picture], zoom: Box | None = None, theme: str = "light"
) -> Figure:
    """The first picture with a box (left, top, width, height in its pixels), then all zoomed.

    A picture is height x width, grey or with 1, 3 or 4 channels last; floats are in [0, 1].
    """
    look = find_theme(theme)
    if not pictures:
        return message_figure("There is no picture to show.", look)
    arrays = [_pixels(title, picture) for title, picture, _ in pictures]
    box = _inside(zoom, arrays[0])
    rows = 1 if len(pictures) <= 3 else 2
    columns = math.ceil((1 + len(pictures)) / rows)
    height, width = arrays[0].shape[:2]
    tallest = max(height / width, box[3] / box[2])
    figure = new_figure(look, (SIZE[0], rows * (SIZE[0] / columns * tallest + 0.2) + 0.3))
    whole, *panels = (figure.add_subplot(rows, columns, i + 1) for i in range(1 + len(pictures)))
    _show(whole, arrays[0], look)
    whole.add_patch(
        Rectangle(
            (box[0] - 0.5, box[1] - 0.5),  # a pixel's centre is at a whole number
            box[2],
            box[3],
            fill=False,
            edgecolor=look.colours[1],
            linewidth=1.5,
            clip_on=False,  # its line is seen at the picture's edge too
        )
    )
    _caption(whole, "whole picture", None, look)
    for axes, (name, _, psnr), array in zip(panels, pictures, arrays, strict=True):
        _show(axes, _crop(array, box, (height, width)), look)
        _caption(axes, name, psnr, look)
    note(figure, "The box is the detail that is enlarged. PSNR is of the whole picture.", look)
    return figure


def _pixels(title: str, picture: ArrayLike) -> NDArray[np.float64]:
    """Values in [0, 1], without a channel that stands alone; what is no number is black."""
    array = np.asarray(picture)
    whole = array.dtype.kind in "ui"
    array = array.astype(np.float64) / (255.0 if whole else 1.0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise ConfigError(
            f"picture {title!r} must be height x width or have 1, 3 or 4 channels last; "
            f"got shape {np.shape(picture)}"
        )
    if array.size == 0:
        raise ConfigError(f"picture {title!r} has no pixels")
    return np.clip(np.nan_to_num(array), 0.0, 1.0)


def _inside(zoom: Box | None, array: NDArray[np.float64]) -> Box:
    """The box cut to the picture; a quarter of its sides in the middle where none is given."""
    height, width = array.shape[:2]
    if zoom is None:
        w, h = max(1, width // 4), max(1, height // 4)
        return (width - w) // 2, (height - h) // 2, w, h
    left, top = min(max(0, zoom[0]), width - 1), min(max(0, zoom[1]), height - 1)
    w, h = min(max(1, zoom[2]), width - left), min(max(1, zoom[3]), height - top)
    return left, top, w, h


def _crop(array: NDArray[np.float64], box: Box, size: tuple[int, int]) -> NDArray[np.float64]:
    """The same detail of a picture that may have fewer or more pixels than the first."""
    down, across = array.shape[0] / size[0], array.shape[1] / size[1]
    top, left = math.floor(box[1] * down), math.floor(box[0] * across)
    bottom = max(top + 1, round((box[1] + box[3]) * down))
    right = max(left + 1, round((box[0] + box[2]) * across))
    return array[top:bottom, left:right]


def _show(axes: Axes, array: NDArray[np.float64], look: Theme) -> None:
    # "none" leaves pixels as they are, in an SVG too; "nearest" would resample them there.
    axes.imshow(array, cmap="gray", vmin=0.0, vmax=1.0, interpolation="none")
    axes.set_anchor("S")  # captions in one line, where shapes differ
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(look.pale)


def _caption(axes: Axes, title: str, psnr: float | None, look: Theme) -> None:
    text = plain(title)
    if psnr is not None and math.isfinite(psnr):
        text += f"   {METRICS['test_psnr'].text(psnr, unit=True)}"
    axes.set_xlabel(text, fontsize=SMALL, color=look.ink)
