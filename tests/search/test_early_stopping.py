"""Early stopping: who is compared with whom, who continues, and how small budgets are spent."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slb_autotune.config.metrics import Objectives
from slb_autotune.config.study import StoppingConfig
from slb_autotune.pareto import front, hypervolume
from slb_autotune.search.early_stopping import (
    EPSILON,
    Phase,
    is_spared,
    phases,
    rank_deficit,
    ranks,
)

few = settings(max_examples=60, deadline=None)  # the machine may be busy

ACCURACY_SIZE = Objectives(("val_accuracy", "size_bytes"), ("maximize", "minimize"))
ACCURACY = Objectives(("val_accuracy",), ("maximize",))
LOSS_GAP_SIZE = Objectives(
    ("val_loss", "size_bytes", "quantization_gap"), ("minimize", "minimize", "minimize")
)
COSTS_ALONE = Objectives(("size_bytes", "bitops"), ("minimize", "minimize"))


def stopped(
    values: list[list[float]], mine: int, objectives: Objectives, stopping: StoppingConfig
) -> bool:
    return rank_deficit(values, mine, objectives, stopping) > 0


def beaten(mine: list[float], other: list[float], goals: Objectives) -> bool:
    """The docstring's definition, one objective at a time."""
    better_somewhere = False
    for metric, direction, a, b in zip(goals.metrics, goals.directions, mine, other, strict=True):
        mine_cost, other_cost = (-a, -b) if direction == "maximize" else (a, b)
        if metric in ("size_bytes", "bitops", "average_weight_bits"):
            if other_cost > mine_cost * (1 + EPSILON):
                return False
        elif other_cost > mine_cost:
            return False
        elif other_cost < mine_cost:
            better_somewhere = True
    return better_somewhere


def slow_rounds(values: list[list[float]], goals: Objectives) -> list[int]:
    """Take away those whom no one left beats, again and again."""
    rounds: dict[int, int] = {}
    number = 0
    while len(rounds) < len(values):
        left = [i for i in range(len(values)) if i not in rounds]
        free = [i for i in left if not any(beaten(values[i], values[j], goals) for j in left)]
        rounds |= dict.fromkeys(free, number)
        number += 1
    return [rounds[i] for i in range(len(values))]


results = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([40, 49, 50, 60, 61, 75, 76, 100])),
    min_size=1,
    max_size=8,
).map(lambda rows: [[float(a), float(b)] for a, b in rows])


@few
@given(results)
def test_ranks_go_by_the_rounds_of_the_definition(values: list[list[float]]) -> None:
    found = ranks(values, ACCURACY_SIZE)
    assert all(found[i] == sum(found < found[i]) for i in range(len(values)))
    by_rank = [slow_rounds(values, ACCURACY_SIZE)[i] for i in np.argsort(found)]
    assert by_rank == sorted(by_rank)


@few
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([40, 50, 51, 70]), st.integers(0, 3)),
        min_size=1,
        max_size=8,
    ).map(lambda rows: [list(map(float, row)) for row in rows])
)
def test_ranks_of_two_measured_objectives_and_a_known_one(values: list[list[float]]) -> None:
    found = ranks(values, LOSS_GAP_SIZE)
    by_rank = [slow_rounds(values, LOSS_GAP_SIZE)[i] for i in np.argsort(found)]
    assert by_rank == sorted(by_rank)


def test_within_a_round_the_larger_contribution_comes_first() -> None:
    # No one beats another; the second and third crowd each other, the ends stand alone.
    values = [[50.0, 1000.0], [70.0, 2000.0], [70.5, 2900.0], [95.0, 6000.0]]
    assert slow_rounds(values, ACCURACY_SIZE) == [0, 0, 0, 0]
    low, high = np.min(values, axis=0), np.max(values, axis=0)
    margin = 0.1 * (high - low)
    reference = [low[0] - margin[0], high[1] + margin[1]]
    whole = hypervolume(values, reference, ACCURACY_SIZE.directions)
    adds = [
        whole - hypervolume(values[:i] + values[i + 1 :], reference, ACCURACY_SIZE.directions)
        for i in range(4)
    ]
    expected = np.argsort(np.argsort([-a for a in adds]))
    assert list(ranks(values, ACCURACY_SIZE)) == list(expected)


def small_and_bad() -> list[list[float]]:
    """A row of sizes in which the smallest network is near its neighbour's size, and useless."""
    return [[12.0, 40_000.0]] + [[60.0 + i, 42_000.0 + 6000 * i] for i in range(7)]


def test_a_small_bad_network_is_not_immortal() -> None:
    values = small_and_bad()
    assert stopped(values, 0, ACCURACY_SIZE, StoppingConfig(rungs=(0.5,)))
    assert ranks(values, ACCURACY_SIZE)[0] == len(values) - 1


def test_in_plain_non_dominated_sorting_it_would_be() -> None:
    assert front(small_and_bad(), ACCURACY_SIZE.directions)[0]


def test_a_small_network_without_a_neighbour_in_size_is_not_compared() -> None:
    values = [[12.0, 10_000.0]] + [[60.0 + i, 42_000.0 + 6000 * i] for i in range(7)]
    assert slow_rounds(values, ACCURACY_SIZE)[0] == 0


@few
@given(results, st.integers(0, 7))
def test_a_clearly_good_trial_is_never_stopped(values: list[list[float]], at: int) -> None:
    mine = at % (len(values) + 1)
    # Better than all in what training decides, and the smallest: it alone has rank 0.
    values.insert(mine, [100.0, 10.0])
    assert ranks(values, ACCURACY_SIZE)[mine] == 0
    for keep in (0.01, 0.5, 0.9):
        stopping = StoppingConfig(rungs=(0.5,), keep=keep, minimum=2)
        assert not stopped(values, mine, ACCURACY_SIZE, stopping)


@few
@given(
    st.lists(st.integers(0, 1000), min_size=4, max_size=12, unique=True),
    st.sampled_from([0.25, 1 / 3, 0.5, 0.75]),
)
def test_with_equal_sizes_it_is_plain_successive_halving(scores: list[int], keep: float) -> None:
    stopping = StoppingConfig(rungs=(0.5,), keep=keep)
    values = [[float(score), 5000.0] for score in scores]
    best = sorted(scores, reverse=True)[: max(1, math.ceil(keep * len(scores)))]
    for mine, score in enumerate(scores):
        assert stopped(values, mine, ACCURACY_SIZE, stopping) == (score not in best)
    alone = [[float(score)] for score in scores]
    assert list(ranks(alone, ACCURACY)) == list(ranks(values, ACCURACY_SIZE))


@few
@given(results, st.randoms(use_true_random=False))
def test_ranks_do_not_depend_on_the_order_of_arrival(values: list[list[float]], random) -> None:
    order = list(range(len(values)))
    random.shuffle(order)
    shuffled = ranks([values[i] for i in order], ACCURACY_SIZE)
    found = ranks(values, ACCURACY_SIZE)
    assert [found[i] for i in order] == list(shuffled)


@few
@given(results, st.sampled_from([0.1, 0.5, 0.9]))
def test_deficits_are_shares_that_are_zero_for_those_kept(
    values: list[list[float]], keep: float
) -> None:
    stopping = StoppingConfig(rungs=(0.5,), keep=keep, minimum=2)
    found = [rank_deficit(values, i, ACCURACY_SIZE, stopping) for i in range(len(values))]
    assert all(0 <= d < 1 for d in found)
    kept = len(values) if len(values) < 2 else max(1, math.ceil(keep * len(values)))
    # Equal results are kept together, so there may be more.
    assert sum(missing == 0 for missing in found) >= kept


def test_below_the_minimum_no_one_is_stopped() -> None:
    values = [[1.0, 50.0], [2.0, 50.0], [3.0, 50.0]]
    assert not stopped(values, 0, ACCURACY_SIZE, StoppingConfig(rungs=(0.5,), minimum=4))
    assert stopped(values, 0, ACCURACY_SIZE, StoppingConfig(rungs=(0.5,), minimum=3))


def test_nothing_is_stopped_where_training_decides_nothing() -> None:
    values = [[float(i), float(i)] for i in range(8)]
    stopping = StoppingConfig(rungs=(0.5,))
    assert all(not stopped(values, i, COSTS_ALONE, stopping) for i in range(8))


def test_a_result_that_is_not_a_number_comes_last() -> None:
    values = [[math.nan, 50.0], [1.0, 50.0], [2.0, 50.0], [3.0, 50.0]]
    assert list(ranks(values, ACCURACY_SIZE)) == [3, 2, 1, 0]


@pytest.mark.parametrize("budget", ["compressed", "prefix"])
@few
@given(
    rungs=st.lists(st.integers(1, 99), unique=True, max_size=5).map(
        lambda shares: tuple(sorted(s / 100 for s in shares))
    ),
    epochs=st.integers(1, 60),
)
def test_phases_rise_and_the_last_is_the_whole_run(
    budget: str, rungs: tuple[float, ...], epochs: int
) -> None:
    found = phases(StoppingConfig(rungs=rungs, budget=budget), epochs)
    assert found[-1] == Phase(len(found) - 1, epochs, epochs, True)
    assert [phase.rung for phase in found] == list(range(len(found)))
    assert all(one.until < other.until for one, other in pairwise(found))
    for phase in found[:-1]:
        assert not phase.final
        assert 1 <= phase.until < epochs
        assert phase.epochs == (phase.until if budget == "compressed" else epochs)
    wanted = {max(1, math.floor(share * epochs + 0.5)) for share in rungs}
    assert {phase.until for phase in found[:-1]} == {w for w in wanted if w < epochs}


def test_rungs_that_fall_on_the_same_epoch_are_one() -> None:
    stopping = StoppingConfig(rungs=(0.1, 0.2, 0.5, 0.9))
    assert phases(stopping, 3) == [
        Phase(0, 1, 1, False),
        Phase(1, 2, 2, False),
        Phase(2, 3, 3, True),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_about_the_asked_share_is_spared(seed: int) -> None:
    stopping = StoppingConfig(rungs=(0.5,), spared=0.1)
    spared = [number for number in range(2000) if is_spared(stopping, seed, number)]
    assert 150 < len(spared) < 250
    assert spared == [number for number in range(2000) if is_spared(stopping, seed, number)]
    assert spared != [number for number in range(2000) if is_spared(stopping, seed + 100, number)]


def test_no_one_or_everyone_is_spared() -> None:
    numbers = range(500)
    assert not any(is_spared(StoppingConfig(spared=0.0), 0, n) for n in numbers)
    assert all(is_spared(StoppingConfig(spared=1.0), 0, n) for n in numbers)
