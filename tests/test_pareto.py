"""Fronts and volumes against slow versions that follow the definitions."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slb_autotune.config.metrics import Objectives
from slb_autotune.errors import ConfigError
from slb_autotune.pareto import (
    contributions,
    front,
    hypervolume,
    hypervolume_share,
    reference_point,
)

few = settings(max_examples=60, deadline=None)  # the machine may be busy

Points = list[list[float]]
SIDE = 6


def instances(nan: bool = False) -> st.SearchStrategy[tuple[Points, list[str]]]:
    """Up to seven points on a small grid, and a direction for each of one to three columns."""
    numbers = st.integers(0, SIDE).map(float)
    value = st.one_of(numbers, numbers, st.just(math.nan)) if nan else numbers

    def of_width(width: int) -> st.SearchStrategy[tuple[Points, list[str]]]:
        directions = st.lists(
            st.sampled_from(["minimize", "maximize"]), min_size=width, max_size=width
        )
        row = st.lists(value, min_size=width, max_size=width)
        return st.tuples(st.lists(row, max_size=7), directions)

    return st.integers(1, 3).flatmap(of_width)


def costs(points: Points, directions: list[str]) -> Points:
    return [
        [-v if d == "maximize" else v for v, d in zip(row, directions, strict=True)]
        for row in points
    ]


def dominates(one: list[float], other: list[float]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def slow_front(points: Points, directions: list[str]) -> list[bool]:
    rows = costs(points, directions)
    whole = [row for row in rows if not any(map(math.isnan, row))]
    return [
        not any(map(math.isnan, row)) and not any(dominates(other, row) for other in whole)
        for row in rows
    ]


def slow_volume(points: Points, reference: list[float], directions: list[str]) -> float:
    """Count the unit boxes between the points and the reference."""
    rows = costs(points, directions)
    (corner,) = costs([reference], directions)
    low = [int(c) - 2 * SIDE - 2 for c in corner]
    cells = product(*(range(a, int(b)) for a, b in zip(low, corner, strict=True)))
    return float(
        sum(
            any(all(v <= c for v, c in zip(row, cell, strict=True)) for row in rows)
            for cell in cells
        )
    )


def reference_of(directions: list[str]) -> list[float]:
    """In the midst of the grid, so that some points lie beyond it."""
    return [1.0 if direction == "maximize" else SIDE - 1.0 for direction in directions]


@few
@given(instances(nan=True))
def test_the_front_is_what_no_other_point_dominates(case: tuple[Points, list[str]]) -> None:
    points, directions = case
    assert list(front(points, directions)) == slow_front(points, directions)


@few
@given(instances(nan=True))
def test_hypervolume_counts_boxes(case: tuple[Points, list[str]]) -> None:
    points, directions = case
    reference = reference_of(directions)
    whole = [row for row in points if not any(map(math.isnan, row))]
    expected = slow_volume(whole, reference, directions)
    assert hypervolume(points, reference, directions) == pytest.approx(expected)


@few
@given(instances(nan=True))
def test_a_contribution_is_the_volume_lost_without_the_point(
    case: tuple[Points, list[str]],
) -> None:
    points, directions = case
    reference = reference_of(directions)
    whole = hypervolume(points, reference, directions)
    lost = [
        whole - hypervolume(points[:i] + points[i + 1 :], reference, directions)
        for i in range(len(points))
    ]
    assert list(contributions(points, reference, directions)) == pytest.approx(lost)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_nothing_in_nothing_out(width: int) -> None:
    directions = ["minimize"] * width
    assert front([], directions).shape == (0,)
    assert hypervolume([], [1.0] * width, directions) == 0.0
    assert contributions([], [1.0] * width, directions).shape == (0,)


def test_equal_points_stand_or_fall_together() -> None:
    points = [[1.0, 2.0], [1.0, 2.0], [3.0, 3.0], [3.0, 3.0]]
    assert list(front(points, ["minimize"] * 2)) == [True, True, False, False]
    assert list(front(points, ["maximize"] * 2)) == [False, False, True, True]
    assert list(contributions(points, [4.0, 4.0], ["minimize"] * 2)) == [0.0] * 4


def test_only_points_that_are_not_numbers_make_no_front() -> None:
    points = [[math.nan, 1.0], [0.0, math.nan]]
    assert not front(points, ["minimize"] * 2).any()
    assert hypervolume(points, [2.0, 2.0], ["minimize"] * 2) == 0.0


def test_points_beyond_the_reference_add_nothing() -> None:
    inside = [[90.0, 500.0]]
    directions = ["maximize", "minimize"]
    alone = hypervolume(inside, [0.0, 1000.0], directions)
    assert alone == 90 * 500
    beyond = [[99.0, 1000.0], [99.0, 2000.0], [0.0, 100.0], [-5.0, 1.0]]
    assert hypervolume(inside + beyond, [0.0, 1000.0], directions) == alone
    added = contributions(inside + beyond, [0.0, 1000.0], directions)
    assert list(added) == [alone, 0, 0, 0, 0]


def test_the_input_is_not_changed() -> None:
    points = np.array([[1.0, 2.0], [2.0, 1.0]])
    before = points.copy()
    front(points, ["maximize", "minimize"])
    hypervolume(points, [0.0, 3.0], ["maximize", "minimize"])
    assert np.array_equal(points, before)


def test_a_wrong_direction_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'minimize', 'maximize'.*got 'max'"):
        front([[1.0]], ["max"])


@pytest.mark.parametrize("points", [[1.0, 2.0], [[1.0], [2.0]], [[1.0, 2.0, 3.0]], [[[1.0, 2.0]]]])
def test_a_wrong_shape_is_named(points: object) -> None:
    with pytest.raises(ConfigError, match="points need 2 columns, one a direction; got shape"):
        front(points, ["minimize", "minimize"])  # type: ignore[arg-type]


def test_a_reference_of_the_wrong_length_is_named() -> None:
    with pytest.raises(ConfigError, match=r"need 2 columns.*got shape \(1, 3\)"):
        hypervolume([[1.0, 2.0]], [1.0, 2.0, 3.0], ["minimize", "minimize"])


ACCURACY_SIZE = Objectives.of({"val_accuracy": "maximize", "size_bytes": "minimize"})
FLOAT_COSTS = {"size_bytes": 1000, "bitops": 10, "average_weight_bits": 32.0}


def test_the_reference_is_no_quality_at_the_float_network_s_cost() -> None:
    assert reference_point(ACCURACY_SIZE, FLOAT_COSTS, []) == [0.0, 1000.0]


def test_the_reference_of_a_measured_cost_is_twice_the_worst_result() -> None:
    objectives = Objectives.of({"val_loss": "minimize", "bitops": "minimize"})
    assert reference_point(objectives, FLOAT_COSTS, []) == []
    results = [{"val_loss": 0.5}, {"val_loss": 1.5}]
    assert reference_point(objectives, FLOAT_COSTS, results) == [3.0, 10.0]


def test_the_share_is_the_part_of_the_box_from_the_reference_to_the_ideal() -> None:
    # 80 % of the height times 90 % of the width, and nothing for what lies outside.
    points = [[80.0, 100.0], [99.0, 1500.0]]
    assert hypervolume_share(points, (0.0, 1000.0), ACCURACY_SIZE) == pytest.approx(0.8 * 0.9)
    assert hypervolume_share([[100.0, 0.0]], (0.0, 1000.0), ACCURACY_SIZE) == pytest.approx(1.0)
    assert hypervolume_share(points, (), ACCURACY_SIZE) == 0.0
