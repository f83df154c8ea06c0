"""The strip of pictures of super-resolution."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slb_autotune.errors import ConfigError
from slb_autotune.report import figures
from tests.report.figures.runs import rendered, words


def test_the_strip_shows_one_picture_whole_and_the_same_detail_of_all():
    rng = np.random.default_rng(0)
    large = rng.random((40, 60, 3))
    small = (large[::2, ::2] * 255).astype(np.uint8)
    pictures = [
        ("original", large, None),
        ("small", small, 24.313),
        ("grey", large[..., :1], 31.0),
    ]
    figure = rendered(figures.draw_strip(pictures, zoom=(10, 20, 16, 8)))
    whole, first, second, third = figure.axes
    assert whole.images[0].get_array().shape == (40, 60, 3)
    np.testing.assert_allclose(first.images[0].get_array(), large[20:28, 10:26])
    np.testing.assert_allclose(second.images[0].get_array(), small[10:14, 5:13] / 255)
    np.testing.assert_allclose(third.images[0].get_array(), large[20:28, 10:26, 0])
    (box,) = whole.patches
    assert (*box.get_xy(), box.get_width(), box.get_height()) == (9.5, 19.5, 16, 8)
    assert "small   24.31 dB" in words(figure)
    assert "original" in words(figure)


@pytest.mark.parametrize(("count", "shape"), [(1, (1, 2)), (3, (1, 4)), (4, (2, 3)), (5, (2, 3))])
def test_a_strip_of_many_pictures_has_two_rows_and_no_empty_frame(count, shape):
    figure = rendered(figures.draw_strip([("black", np.zeros((10, 20)), 30.0)] * count))
    assert len(figure.axes) == 1 + count
    assert figure.axes[0].get_gridspec().get_geometry() == shape


def test_a_box_beyond_the_picture_is_cut_to_it():
    picture = np.zeros((10, 20))
    figure = rendered(figures.draw_strip([("black", picture, math.nan)], zoom=(15, -3, 50, 50)))
    assert figure.axes[1].images[0].get_array().shape == (10, 5)
    assert "dB" not in words(figure)


def test_a_picture_of_a_strange_shape_is_refused():
    with pytest.raises(ConfigError, match=r"picture 'x' must be height x width.*\(5, 5, 2\)"):
        figures.draw_strip([("x", np.zeros((5, 5, 2)), None)])
