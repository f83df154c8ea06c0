"""Schedules against the formulas as the paper prints them."""

import math
from itertools import pairwise

import pytest

from slb_autotune.config.registry import SCHEDULES
from slb_autotune.errors import ConfigError
from slb_autotune.quant import temperature

PRINTED = {
    "linear": lambda i, n, s, e: s + i / n * (e - s),
    "sin": lambda i, n, s, e: s + math.sin(i * math.pi / (2 * n)) * (e - s),
    "exp": lambda i, n, s, e: s * (e / s) ** (i / n),
    "cosine": lambda i, n, s, e: s + (1 - math.cos(math.pi * i / n)) / 2 * (e - s),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("step", [0, 1, 137, 250, 499, 500])
def test_as_printed(name: str, step: int) -> None:
    ours = temperature(name, step, 500, 0.01, 10)
    assert ours == pytest.approx(PRINTED[name](step, 500, 0.01, 10), rel=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_rises_from_T_s_to_T_e(name: str) -> None:
    curve = [temperature(name, i, 100, 0.01, 1000) for i in range(101)]
    assert curve[0] == pytest.approx(0.01)
    assert curve[-1] == pytest.approx(1000)
    assert curve == sorted(curve)


@pytest.mark.parametrize("name", SCHEDULES)
def test_flat_parts_at_both_ends(name: str) -> None:
    curve = [temperature(name, i, 100, 0.5, 8, flat_until=0.4, flat_from=0.9) for i in range(101)]
    assert curve[:41] == pytest.approx([0.5] * 41)
    assert curve[90:] == pytest.approx([8] * 11)
    middle = [temperature(name, i, 50, 0.5, 8) for i in range(51)]
    assert curve[40:91] == pytest.approx(middle)


def test_growth_of_the_authors_readme() -> None:
    """exp between 0.4 and 0.9 of 500 epochs grows by the same factor every epoch."""
    end = 0.01 * 1.03**250
    curve = [
        temperature("exp", e, 500, 0.01, end, flat_until=0.4, flat_from=0.9)
        for e in range(200, 451)
    ]
    factors = [b / a for a, b in pairwise(curve)]
    assert factors == pytest.approx([1.03] * 250)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("exp", 5, 4, 0.01, 10), "step must lie in 0..total_steps; got 5 of 4"),
        (("exp", 0, 4, 0.0, 10), "T_s and T_e must be above 0"),
        (("expo", 0, 4, 0.1, 10), "unknown schedule 'expo' Hint: did you mean 'exp'?"),
    ],
)
def test_errors(arguments: tuple, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        temperature(*arguments)
    assert message in str(caught.value)


def test_flat_parts_must_leave_room() -> None:
    with pytest.raises(ConfigError, match="flat_until < flat_from"):
        temperature("exp", 1, 4, 0.1, 1, flat_until=0.9, flat_from=0.4)
