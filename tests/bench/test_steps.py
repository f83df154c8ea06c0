"""The benchmarks run and report ratios of the right things; how fast is for `bench` to say."""

import time
from collections.abc import Callable
from functools import partial

import pandas as pd
import pytest

from slb_autotune.bench import steps as bench
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import ConfigError

SMALL = TrialConfig.from_mapping({"width": 4, "data.name": "cifar10"})


def test_interleave_takes_turns_and_makes_all_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    made: list[str] = []
    ticks = iter(range(1000))

    def maker(name: str) -> Callable[[], bench.Step]:
        def make() -> bench.Step:
            made.append(name)
            return partial(order.append, name)

        return make

    monkeypatch.setattr(bench, "FRESH_TURNS", 2)
    table = bench.interleave({name: maker(name) for name in "ab"}, 0.0, lambda: next(ticks))
    turns = [order[i : i + 2] for i in range(0, len(order), 2)]
    assert len(turns) == 5  # three that count, and one to warm up whenever all is made anew
    assert all(sorted(turn) == ["a", "b"] for turn in turns)
    assert sorted(made) == ["a", "a", "b", "b"]
    assert table.to_dict("list") == {"a": [1.0] * 3, "b": [1.0] * 3}


def test_every_side_is_measured() -> None:
    times = bench._measure_sides(SMALL, bench.SIDES, 2, 0.0, 1, time.process_time)
    assert list(times) == ["plain torch", *bench.SIDES]
    assert (times > 0).all(axis=None)


def test_rivals_are_measured_at_their_fewest_bits() -> None:
    sides = bench.method_sides(["slb", "float", "dorefa", "bwn", "ttq", "tbn"])
    rivals = list(sides)[len(bench.SIDES) :]
    assert rivals == ["dorefa 1/1", "bwn 1/32", "ttq 2/32", "tbn 1/2"]


def test_sides_are_chosen_by_name() -> None:
    chosen = bench.chosen_sides(bench.SIDES, ["slb 4 bits"])
    assert list(chosen) == ["float", "float again", "slb 4 bits"]
    assert list(bench.chosen_sides(bench.SIDES, [])) == list(bench.SIDES)
    with pytest.raises(ConfigError, match="no side is called 'slb 4 bit'") as caught:
        bench.chosen_sides(bench.SIDES, ["slb 4 bit"])
    assert caught.value.hint == "did you mean 'slb 4 bits'?"


def test_the_table_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = ["plain torch", *bench.SIDES]
    monkeypatch.setattr(bench, "peak_memory", lambda *_: dict.fromkeys(sides, 5e6))
    turns = pd.DataFrame({side: [0.5, 0.6, 0.7] for side in sides})
    turns["slb 1 bit"] *= 1.5
    monkeypatch.setattr(bench, "_measure_sides", lambda *_: turns)
    table = bench.step(["resnet20"], 0.0, 1, 2, ["slb"])
    assert table["side"].tolist() == sides
    ratios = table.set_index("side")[["cpu_ratio", "cpu_best", "wall_ratio", "wall_best"]]
    assert ratios.loc["slb 1 bit"].tolist() == pytest.approx([1.5] * 4)
    assert (ratios.drop(index="slb 1 bit") == 1).all(axis=None)
    assert table["cpu_ms"].min() == 500


def test_ratios_are_medians_over_turns_and_over_the_best_of_a_few() -> None:
    times = pd.DataFrame({"float": [1.0, 4.0], "float again": [5.0, 3.0], "other": [9.0, 6.0]})
    assert bench.ratio(times, "other") == (9.0 / 3.0 + 6.0 / 3.5) / 2
    assert bench.best_ratio(times, "other") == 6.0 / 2.0


def test_a_moment_that_is_quiet_for_one_side_alone_does_not_count() -> None:
    sets = [[1.0] * bench.FRESH_TURNS, [0.1, *[1.0] * (bench.FRESH_TURNS - 1)], [1.0]]
    quiet = [seconds for turns in sets for seconds in turns]
    times = pd.DataFrame({"float": quiet, "float again": quiet, "other": [1.5] * len(quiet)})
    assert bench.best_ratio(times, "other") == 1.5


def test_an_epoch_is_compared_with_its_bare_steps() -> None:
    table = bench.epoch(images=100, rounds=1, root=None)
    assert table["what"].tolist() == ["bare steps", "epoch", "calibration", "validation"]
    assert isinstance(table, pd.DataFrame)
    assert table["ratio"].iloc[0] == 1
    assert (table["cpu_s"] > 0).all()


@pytest.mark.slow
def test_more_bits_take_more_memory() -> None:
    peaks = bench.peak_memory(
        "vgg_small", 2, {side: bench.SIDES[side] for side in ("float", "slb 4 bits")}
    )
    assert peaks["slb 4 bits"] > 2 * peaks["float"] > 0
