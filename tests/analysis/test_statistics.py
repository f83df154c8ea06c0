"""Statistics, against slow versions written out."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slb_autotune.analysis.statistics import spearman, spearman_interval


def slow_spearman(a: list[float], b: list[float]) -> float:
    """For values without ties: 1 - 6 sum d^2 / (n (n^2 - 1))."""
    n = len(a)
    d = [sorted(a).index(x) - sorted(b).index(y) for x, y in zip(a, b, strict=True)]
    return 1 - 6 * sum(x * x for x in d) / (n * (n * n - 1))


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(6)))
def test_spearman_is_the_correlation_of_ranks(order: list[int]) -> None:
    early = [float(2**i) for i in range(6)]
    assert spearman(early, order) == pytest.approx(slow_spearman(early, order))


@pytest.mark.parametrize(
    ("early", "final"),
    [([], []), ([1.0, 2.0], [1.0, 2.0]), ([1.0] * 6, list(range(6))), (list(range(6)), [1.0] * 6)],
    ids=["none", "two", "equal at the rung", "equal at the end"],
)
def test_a_correlation_that_is_not_defined_is_nan(early: list[float], final: list[float]) -> None:
    assert math.isnan(spearman(early, final))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    rho, count, covered = 0.6, 30, 0
    truth = 6 / math.pi * math.asin(rho / 2)  # Spearman's of a bivariate normal
    for _ in range(400):
        x = random.normal(size=count)
        y = rho * x + math.sqrt(1 - rho**2) * random.normal(size=count)
        low, high = spearman_interval(spearman(x, y), count)
        covered += low <= truth <= high
    assert 0.92 < covered / 400 < 0.98
