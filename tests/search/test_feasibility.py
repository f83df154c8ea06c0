"""What can run at all: costs, constraints and memory, before anything is trained."""

from typing import Any

import pytest

from slb_autotune import data
from slb_autotune.cost import estimate
from slb_autotune.errors import ConfigError
from slb_autotune.search.feasibility import Feasibility, check_study, concurrent_trials
from tests.builders import TINY, tiny_study


def feasibility(**changes: Any) -> Feasibility:
    return Feasibility(tiny_study(**changes))


def test_costs_and_bits_are_those_of_the_network() -> None:
    found = feasibility()
    config = found.base.updated({"weight_bits": {"layer1.*": 4, "*": 1}})
    cost = estimate(config, data.info(config.data))
    checked = found.check(config)
    assert checked.costs == cost.metrics()
    assert checked.training_bytes == cost.training_bytes
    assert set(checked.bits) == set(found.layers)
    assert checked.bits["layer1.0.conv1"] == 4
    assert checked.bits["layer3.0.conv1"] == 1
    assert (checked.violations, checked.reason) == ({}, "")


def test_costs_are_those_of_a_point_s_own_data_set() -> None:
    found = feasibility()
    other = found.base.updated({"data.name": "cifar10", "data.train_images": None})
    assert found.check(other).costs == estimate(other, data.info(other.data)).metrics()
    assert found.check(other).costs != found.check(found.base).costs


def test_a_float_network_has_no_bits() -> None:
    found = feasibility()
    assert found.check(found.base.updated({"method": "float"})).bits == {}


def test_a_constraint_on_a_cost_is_decided_before_training() -> None:
    found = feasibility(constraints=["size_bytes <= 4 kB", "val_accuracy >= 90"])
    size = found.check(found.base).costs["size_bytes"]
    checked = found.check(found.base)
    assert checked.violations == {"size_bytes <= 4000": pytest.approx(size / 4000 - 1)}
    assert checked.reason == f"size_bytes is {size}, above 4000"


def test_too_large_for_the_memory_is_infeasible() -> None:
    found = feasibility()
    needed = found.check(found.base).training_bytes
    found.memory = needed - 1
    assert found.check(found.base).violations["memory"] > 0
    assert found.check(found.base).reason.startswith("training needs ")
    found.memory = needed
    assert found.check(found.base).reason == ""


def test_a_constraint_that_nothing_can_meet_is_refused() -> None:
    with pytest.raises(ConfigError, match="no allocation can meet size_bytes <= 1000: the least"):
        check_study(tiny_study(constraints=["size_bytes <= 1 kB"]))
    check_study(tiny_study(constraints=["size_bytes <= 64 kB"]))


def test_the_smallest_width_counts_too() -> None:
    space = {"weight_bits": [1, 2], "network.width": {"integer": [2, 8]}}
    wide = tiny_study(space={"weight_bits": [1, 2]}, constraints=["size_bytes <= 3 kB"])
    with pytest.raises(ConfigError, match="no allocation can meet"):
        check_study(wide)
    check_study(tiny_study(space=space, constraints=["size_bytes <= 3 kB"]))


def test_an_objective_that_nothing_measures_is_refused() -> None:
    study = tiny_study(trial={**TINY, "data.val_fraction": 0.0})
    with pytest.raises(
        ConfigError, match=r"val_accuracy is asked for, but data\.val_fraction is 0"
    ):
        check_study(study)


def test_costs_need_no_device() -> None:
    found = feasibility(trial={**TINY, "device": "cuda"})
    assert found.float_costs["size_bytes"] > 0


def test_trials_at_once_are_as_asked_or_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert concurrent_trials(tiny_study()) == 8
    assert concurrent_trials(tiny_study(resources={"cpus": 3.0})) == 2
    assert concurrent_trials(tiny_study(resources={"concurrent": 5})) == 5
