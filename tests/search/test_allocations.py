"""Allocations: the exact optimum within a budget of bytes."""

from itertools import product
from math import ceil

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slb_autotune.errors import ConfigError
from slb_autotune.search.allocations import best_allocations


def table_of(rows: list[tuple[str, int, float, int]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["layer", "bits", "cost", "bytes"])


Row = tuple[str, int, float, int]

WIDTHS = (1, 2, 4)
OPTIONS = st.lists(
    st.dictionaries(
        st.sampled_from(WIDTHS),
        # Few different numbers make many ties; thirds make sums that round.
        st.tuples(st.integers(-3, 6).map(lambda n: n / 3), st.integers(1, 12)),
        min_size=1,
    ),
    min_size=1,
    max_size=6,
)


def total(rows: list[Row]) -> tuple[float, int]:
    """(cost, bytes) of one row per layer; a cost below 0 counts as 0."""
    cost = 0.0
    for row in rows:
        cost += max(row[2], 0.0)
    return cost, sum(row[3] for row in rows)


def totals(rows: list[Row], allocations: list[dict[str, int]]) -> list[tuple[float, int]]:
    by_key = {(layer, bits): (layer, bits, cost, size) for layer, bits, cost, size in rows}
    return [total([by_key[key] for key in bits.items()]) for bits in allocations]


def brute_force(rows: list[Row], sizes: int) -> list[tuple[float, int]]:
    """(cost, bytes) of the best of all allocations at each budget."""
    layers: dict[str, list[Row]] = {}
    for row in rows:
        layers.setdefault(row[0], []).append(row)
    every = [total(list(chosen)) for chosen in product(*layers.values())]
    least, most = (sum(f(r[3] for r in own) for own in layers.values()) for f in (min, max))
    budgets = [int(budget + 1e-9) for budget in np.geomspace(least, most, sizes)]
    return list(dict.fromkeys(min(t for t in every if t[1] <= budget) for budget in budgets))


@settings(max_examples=150, deadline=None)
@given(options=OPTIONS, sizes=st.integers(1, 7))
def test_allocations_are_as_good_as_trying_everything(
    options: list[dict[int, tuple[float, int]]], sizes: int
) -> None:
    rows = [(f"l{i}", b, c, s) for i, row in enumerate(options) for b, (c, s) in row.items()]
    found = best_allocations(table_of(rows), sizes)
    assert all(list(bits) == [f"l{i}" for i in range(len(options))] for bits in found)
    assert totals(rows, found) == brute_force(rows, sizes)


def test_allocations_are_the_optimum_at_each_budget() -> None:
    rng = np.random.default_rng(1)
    rows = [
        (f"l{i}", bits, float(rng.normal(2.0**-bits, 0.2)), (3 + 7 * i) * bits)
        for i in range(5)
        for bits in (1, 2, 4)
    ]
    assert any(cost < 0 for _, _, cost, _ in rows)
    found = totals(rows, best_allocations(table_of(rows), sizes=6))
    assert found == brute_force(rows, 6)
    assert [size for _, size in found] == sorted({size for _, size in found})
    assert found[0][1] == sum(size for _, bits, _, size in rows if bits == 1)


def test_a_budget_is_met_to_the_byte() -> None:
    # The budgets are 100, 200 and 400 bytes. The better choice, b at 2 bits, would take 201.
    rows = [("a", 1, 1.0, 50), ("a", 2, 0.5, 150), ("b", 1, 1.0, 50), ("b", 2, 0.4, 151)]
    middle = [("c", 1, 0.0, 0), ("c", 8, 0.0, 99)]
    assert best_allocations(table_of([*rows, *middle]), sizes=3)[1] == {"a": 2, "b": 1, "c": 1}


def test_ties_take_fewer_bytes() -> None:
    rows = [("a", 1, 0.0, 1), ("a", 8, 0.0, 8), ("b", 1, 1.0, 1), ("b", 8, 0.0, 8)]
    assert best_allocations(table_of(rows))[-1] == {"a": 1, "b": 8}


def test_a_network_of_millions_of_irregular_bytes() -> None:
    rng = np.random.default_rng(0)
    widths = (1, 2, 3, 4, 8)
    params = rng.integers(10_001, 2_400_003, 20).tolist()
    rows = [
        (f"l{i}", b, float(rng.exponential() * 2.0**-b), ceil(p * b / 8))
        for i, p in enumerate(params)
        for b in widths
    ]
    costs, sizes = np.array([row[2:] for row in rows]).reshape(20, 5, 2).transpose(2, 0, 1)
    found = totals(rows, best_allocations(table_of(rows), sizes=5))
    for _ in range(300):
        drawn = np.arange(20), rng.integers(5, size=20)
        cost, size = costs[drawn].sum(), sizes[drawn].sum()
        assert not any(size <= least and cost < best for best, least in found)


def test_a_layer_that_breaks_is_never_chosen_where_it_can_be_helped() -> None:
    rows = [("a", 1, float("inf"), 1), ("a", 2, 0.1, 2), ("b", 1, 0.2, 1), ("b", 2, 0.0, 2)]
    found = best_allocations(table_of(rows), sizes=4)
    assert found == [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 2, "b": 2}]


def test_noise_is_not_paid_for_with_bits() -> None:
    rows = [("a", 1, 0.0, 1), ("a", 8, -0.3, 8), ("b", 1, 0.2, 1), ("b", 8, -0.1, 8)]
    assert best_allocations(table_of(rows)) == [{"a": 1, "b": 1}, {"a": 1, "b": 8}]


def test_one_width_gives_one_allocation() -> None:
    table = table_of([("a", 2, 0.1, 4), ("b", 2, 0.1, 4)])
    assert best_allocations(table) == [{"a": 2, "b": 2}]
    assert best_allocations(table, sizes=1) == [{"a": 2, "b": 2}]


def test_allocations_explain_what_they_cannot_use() -> None:
    with pytest.raises(ConfigError, match="sizes must be at least 1; got 0"):
        best_allocations(table_of([("a", 1, 0.0, 1)]), sizes=0)
    with pytest.raises(ConfigError, match="the table of sensitivities is empty"):
        best_allocations(table_of([]))
    with pytest.raises(ConfigError, match="a cost of layer 'a' is not a number"):
        best_allocations(table_of([("a", 1, float("nan"), 1)]))
