"""search --dry-run: what a study would take."""

import math
from pathlib import Path
from typing import Any

import optuna
import pytest

from slb_autotune.cost import estimate
from slb_autotune.data import info
from slb_autotune.errors import ConfigError
from slb_autotune.search.plan import Plan, duration, plan
from tests.builders import TINY, shared_costs, tiny_study


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    monkeypatch.setattr("slb_autotune.search.feasibility.CostModel", shared_costs)
    monkeypatch.setattr("slb_autotune.search.plan.DRAWS", 200)


BITS = {"weight_bits": {"choices": [1, 2, 4], "per": "stage"}}
ONE_SLOT = {"concurrent": 1}


def planned(**changes: Any) -> Plan:
    return plan(tiny_study(**{"space": BITS, "resources": ONE_SLOT, **changes}))


def test_the_numbers_of_a_study_on_digits() -> None:
    config = tiny_study(
        space=BITS,
        resources={"concurrent": 2},
        trial={**TINY, "epochs": 8, "data.train_images": 320},
        early_stopping={"rungs": [0.25, 0.5]},
        budget={"trials": 12},
    )
    found = plan(config)
    assert found.space_size == 27
    assert found.feasible_share == 1.0
    assert (found.trials, found.slots) == (12, 2)
    assert found.epochs_per_trial == 2 + 4 + 8
    assert found.steps_per_epoch == 10
    assert 0.001 < found.step_seconds < 1
    largest = estimate(config.base().updated({"weight_bits": 4}), info(config.base().data))
    assert found.memory_bytes == largest.training_bytes
    assert found.disk_bytes > 0
    assert found.seconds == pytest.approx(12 * 14 * 10 * found.step_seconds / 2)


def test_prefix_rungs_cost_no_further_epochs() -> None:
    early = {"rungs": [0.25, 0.5], "budget": "prefix"}
    assert planned(trial={**TINY, "epochs": 8}, early_stopping=early).epochs_per_trial == 8


def test_the_feasible_share_is_that_of_the_constraint() -> None:
    config = tiny_study()
    sizes = {
        bits: estimate(config.base().updated({"weight_bits": bits}), info(config.base().data))
        for bits in (1, 2)
    }
    # Only one of the three choices for the network as a whole fits.
    limit = (sizes[1].size_bytes + sizes[2].size_bytes) // 2
    found = planned(space={"weight_bits": [1, 2, 4]}, constraints=[f"size_bytes <= {limit}"])
    assert found.feasible_share == pytest.approx(1 / 3, abs=0.1)
    assert found.memory_bytes == sizes[1].training_bytes


def test_a_grid_is_no_longer_than_its_points() -> None:
    assert planned(sampler="grid", budget={"trials": 100}).trials == 27
    assert planned(sampler="grid", budget={"trials": 10}).trials == 10


def test_a_list_of_points_has_its_own_length() -> None:
    points = [{"T_e": 100.0 + i} for i in range(45)]
    found = planned(space={}, points=points)
    assert (found.trials, found.space_size, found.feasible_share) == (45, 45, 1.0)


def test_there_are_no_more_slots_than_trials() -> None:
    assert planned(resources={"concurrent": 8}, budget={"trials": 3}).slots == 3


def test_constraints_that_nothing_meets_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no allocation can meet size_bytes <= 1000: the least"):
        planned(constraints=["size_bytes <= 1 kB"])


def test_planning_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    planned(storage={"folder": str(folder)}, early_stopping={"rungs": [0.5]})
    assert list(tmp_path.iterdir()) == []


def test_the_lines_for_people() -> None:
    numbers = (27.0, 0.256, 12, 14, 0.0305, 10, 2, 3_000_000, 36_000_000)
    assert Plan(*numbers).lines() == [
        "space      27 trials",
        "feasible   25.6% of 200 random draws",
        "trials     12, 2 at once, 14 epochs each if none is stopped early",
        "step       30.5 ms measured, 10 steps per epoch",
        "time       about 26 seconds, validation aside",
        "memory     6 MB for parameters, gradients and optimiser state of all slots",
        "disk       36 MB of checkpoints",
    ]
    endless = Plan(math.inf, *numbers[1:])
    assert endless.lines()[0] == "space      without end (continuous ranges)"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(59.6, "60 seconds"), (150, "2.5 minutes"), (7200, "2.0 hours"), (259200, "3.0 days")],
)
def test_a_duration_is_said_in_its_own_unit(seconds: float, words: str) -> None:
    assert duration(seconds) == words
