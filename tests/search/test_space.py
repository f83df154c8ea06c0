"""From a study file to parameters to trials, and what they cost."""

import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slb_autotune import data
from slb_autotune.config.study import StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.cost import CostModel, estimate
from slb_autotune.errors import ConfigError
from slb_autotune.search.space import Space, contains, stage_of
from slb_autotune.search.storage import blank_ledger
from tests.builders import TINY, tiny_study

RESNET20 = [f"layer{s}.{b}.conv{c}" for s in (1, 2, 3) for b in (0, 1, 2) for c in (1, 2)]
VGG_SMALL = ["stage1.3", "stage2.0", "stage2.3", "stage3.0", "stage3.3"]
VDSR = [f"body.conv{i}" for i in range(1, 19)]
NETWORKS = {
    "resnet20": ("digits", RESNET20),
    "vgg_small": ("cifar10", VGG_SMALL),
    "vdsr": ("photos", VDSR),
}


def space_of(space: dict[str, Any], layers: list[str] = RESNET20, **changes: Any) -> Space:
    values = {"name": "s", "trial": TINY, "space": space, **changes}
    return Space(StudyConfig.from_mapping(values), layers)


def names(space: Space) -> list[str]:
    return [dimension.name for dimension in space.dimensions]


CONDITIONAL = {
    "clip_limit": None,
    "optimizer.clip": ["none", "norm", "value"],
    "optimizer.clip_limit": {"choices": [0.1, 1.0], "when": {"optimizer.clip": ["norm", "value"]}},
    "schedule": ["linear", "exp"],
    "T_s": {"choices": [0.01, 0.1, 1.0], "when": {"schedule": "exp"}},
}
del CONDITIONAL["clip_limit"]

EVERYTHING = {
    "lr": {"log": [0.001, 1]},
    "label_smoothing": {"uniform": [0.0, 0.5]},
    "epochs": {"integer": [2, 5]},
    "T_e": {"log": [0.1, 1000], "when": {"schedule": ["exp", "sin"]}},
    "schedule": ["linear", "sin", "exp"],
    "norm.batches": {"integer": [1, 3], "when": {"T_e": 1000.0}},
    "weight_bits": {"choices": [1, 2, 4], "per": "stage"},
    "activation_bits": {"choices": [2, 4, 32], "per": "layer"},
}


# -- which parameters there are ------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
def test_the_layers_are_those_that_the_network_lets_quantise(network: str) -> None:
    dataset, layers = NETWORKS[network]
    config = TrialConfig.from_mapping({"network.name": network, "data.name": dataset})
    assert CostModel(data.info(config.data)).layers(config) == layers


@pytest.mark.parametrize(
    ("layers", "per", "patterns"),
    [
        (RESNET20, "network", ["*"]),
        (RESNET20, "stage", ["layer1.*", "layer2.*", "layer3.*"]),
        (RESNET20, "layer", RESNET20),
        (VGG_SMALL, "network", ["*"]),
        (VGG_SMALL, "stage", ["stage1.*", "stage2.*", "stage3.*"]),
        (VGG_SMALL, "layer", VGG_SMALL),
        (VDSR, "stage", ["body.*"]),
        (VDSR, "layer", VDSR),
        (["conv1", "layer1.conv1", "layer1.conv2"], "stage", ["conv1", "layer1.*"]),
    ],
)
def test_bits_for_the_network_a_stage_or_a_layer(
    layers: list[str], per: str, patterns: list[str]
) -> None:
    for field in ("weight_bits", "activation_bits"):
        space = space_of({field: {"choices": [1, 2, 4], "per": per}}, layers)
        assert names(space) == [f"{field}/{pattern}" for pattern in patterns]


def test_a_stage_is_the_first_part_of_a_name() -> None:
    assert Counter(map(stage_of, RESNET20)) == {"layer1": 6, "layer2": 6, "layer3": 6}


def test_short_names_become_long_ones() -> None:
    space = space_of({"T_e": {"log": [1, 10]}, "lr": [0.1, 0.2], "width": [4, 8]})
    assert names(space) == ["temperature.T_e", "optimizer.lr", "network.width"]


def test_what_a_condition_needs_is_drawn_before_it() -> None:
    order = names(space_of(EVERYTHING))
    assert order.index("temperature.schedule") < order.index("temperature.T_e")
    assert order.index("temperature.T_e") < order.index("norm.batches")


def test_conditions_in_a_circle_are_refused() -> None:
    circle = {
        "T_s": {"choices": [0.01, 0.1], "when": {"T_e": 10.0}},
        "T_e": {"choices": [10.0, 20.0], "when": {"schedule": "exp"}},
        "schedule": {"choices": ["exp", "sin"], "when": {"T_s": 0.1}},
    }
    with pytest.raises(ConfigError, match="depend on each other in a circle") as caught:
        space_of({**circle, "lr": [0.1, 0.2]})
    assert "temperature.T_s, temperature.T_e, temperature.schedule" in str(caught.value)
    assert "lr" not in caught.value.message


# -- drawing -------------------------------------------------------------------------------


def read_back(config: TrialConfig, names: Iterable[str]) -> dict[str, Any]:
    """What a configuration says of these parameters."""
    found = {}
    for name in names:
        field, _, pattern = name.partition("/")
        value = config.flat()[field]
        found[name] = value[pattern] if isinstance(value, Mapping) else value
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_draws_lie_in_the_space_and_conditions_hold(seed: int) -> None:
    space = space_of(EVERYTHING)
    values = space.draw(np.random.default_rng(seed))
    by_name = {dimension.name: dimension for dimension in space.dimensions}
    for name, value in values.items():
        assert contains(by_name[name].distribution, value)
    warm = values["temperature.schedule"] in ("exp", "sin")
    assert ("temperature.T_e" in values) == warm
    # The fixed part's T_e is 1000, a drawn one almost never.
    assert ("norm.batches" in values) == (values.get("temperature.T_e", 1000.0) == 1000.0)
    assert by_name.keys() - values.keys() <= {"temperature.T_e", "norm.batches"}
    assert read_back(space.config(values), values) == values


def test_optuna_draws_the_same_parameters() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = space_of(EVERYTHING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(30):
        trial = study.ask()
        values = space.suggest(trial)
        assert values == trial.params
        warm = values["temperature.schedule"] in ("exp", "sin")
        assert ("temperature.T_e" in values) == warm
        assert read_back(space.config(values), values) == values


def test_a_condition_on_a_fixed_field() -> None:
    wanted = {"lr": {"choices": [0.1, 0.2], "when": {"optimizer.name": "adam"}}, "T_e": [1.0, 2.0]}
    rng = np.random.default_rng(0)
    assert space_of(wanted).draw(rng).keys() == {"temperature.T_e"}
    adam = space_of(wanted, trial={**TINY, "optimizer.name": "adam"})
    assert adam.draw(rng).keys() == {"temperature.T_e", "optimizer.lr"}


def test_a_condition_on_searched_bits_looks_at_what_was_drawn() -> None:
    space = space_of(
        {
            "weight_bits": [1, 2],
            "T_e": {"choices": [10.0, 20.0], "when": {"weight_bits": 2}},
        }
    )
    found = list(space.grid())
    assert len(found) == 3
    assert all(("temperature.T_e" in v) == (v["weight_bits/*"] == 2) for v in found)


def test_log_ranges_are_drawn_evenly_in_their_logarithm() -> None:
    space = space_of({"T_e": {"log": [1, 10000]}})
    rng = np.random.default_rng(0)
    values = [math.log10(space.draw(rng)["temperature.T_e"]) for _ in range(2000)]
    assert np.histogram(values, bins=4, range=(0, 4))[0] == pytest.approx([500] * 4, rel=0.2)


def test_integer_ranges_include_both_ends() -> None:
    space = space_of({"epochs": {"integer": [2, 4]}})
    rng = np.random.default_rng(0)
    assert {space.draw(rng)["epochs"] for _ in range(60)} == {2, 3, 4}


# -- trials --------------------------------------------------------------------------------


def test_the_trial_of_some_parameters() -> None:
    space = space_of(EVERYTHING)
    bits = {"layer1.*": 1, "layer2.*": 2, "layer3.*": 4}
    values = {"optimizer.lr": 0.5, "temperature.T_e": 7.0}
    config = space.config({**values, **{f"weight_bits/{k}": v for k, v in bits.items()}})
    assert config == space.base.updated({"lr": 0.5, "T_e": 7.0, "weight_bits": bits})
    assert space.config({}, seed=3) == space.base.updated({"seed": 3})


def test_one_number_for_the_network_is_a_number_not_a_map() -> None:
    space = space_of({"weight_bits": [1, 2], "activation_bits": [4, 32]})
    config = space.config({"weight_bits/*": 2, "activation_bits/*": 4})
    assert (config.weight_bits, config.activation_bits) == (2, 4)


# -- grids and sizes -----------------------------------------------------------------------


def test_a_grid_has_every_combination_once() -> None:
    space = space_of({"lr": [0.1, 0.2], "weight_bits": {"choices": [1, 2, 4], "per": "stage"}})
    found = [tuple(values.items()) for values in space.grid()]
    assert len(found) == len(set(found)) == 2 * 27 == space.size()


def test_a_grid_has_no_duplicates_under_conditions() -> None:
    space = space_of(CONDITIONAL)
    found = [tuple(values.items()) for values in space.grid()]
    # clip: 1 + 2 x 2 ways; schedule: 1 + 3 ways.
    assert len(found) == len(set(found)) == 20
    configs = {space.config(dict(values)).digest for values in found}
    assert len(configs) == 20


def test_the_size_of_a_space_with_conditions_is_that_of_its_grid() -> None:
    assert space_of(CONDITIONAL).size() == 20


def test_a_grid_takes_points_of_a_range() -> None:
    space = space_of(
        {"T_e": {"log": [1, 10000]}, "epochs": {"integer": [2, 3]}, "lr": {"uniform": [0.1, 0.3]}},
        sampler={"name": "grid", "grid_points": 3},
    )
    found = list(space.grid())
    assert len(found) == 3 * 2 * 3
    assert sorted({v["temperature.T_e"] for v in found}) == pytest.approx([1, 100, 10000])
    assert {v["epochs"] for v in found} == {2, 3}
    assert sorted({v["optimizer.lr"] for v in found}) == pytest.approx([0.1, 0.2, 0.3])
    assert all(read_back(space.config(values), values) == values for values in found)


@pytest.mark.parametrize(
    ("space", "size"),
    [
        ({"lr": [0.1, 0.2, 0.3]}, 3),
        ({"epochs": {"integer": [2, 5]}}, 4),
        ({"epochs": {"integer": [2, 5]}, "schedule": ["exp", "sin"]}, 8),
        ({"weight_bits": {"choices": [1, 2], "per": "layer"}}, 2**18),
        ({"lr": {"log": [0.1, 1]}, "schedule": ["exp", "sin"]}, math.inf),
    ],
)
def test_the_size_of_a_space(space: dict[str, Any], size: float) -> None:
    assert space_of(space).size() == size


# -- costs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trial",
    [
        {"network.name": "resnet20", "width": 8, "data.name": "digits", "activation": "pact"},
        {
            "network.name": "vdsr",
            "network.options": {"depth": 6},
            "width": 8,
            "data.name": "photos",
            "optimizer.name": "adam",
        },
    ],
    ids=["resnet20-pact", "vdsr"],
)
def test_the_cost_model_says_what_the_estimate_says(trial: dict[str, Any]) -> None:
    base = TrialConfig.from_mapping(trial)
    info = data.info(base.data)
    model = CostModel(info)
    layers = model.layers(base)
    draw = random.Random(0)
    configs = []
    for _ in range(4):
        weights = {layer: draw.choice([1, 4, 32]) for layer in layers} | {layers[0]: 4}
        inputs = {layer: draw.choice([4, 32]) for layer in layers}
        configs.append(base.updated({"weight_bits": weights, "activation_bits": inputs}))
    for config in configs:
        assert model.cost(config) == estimate(config, info)
    began = time.perf_counter()
    for config in configs:
        model.cost(config)
    assert (time.perf_counter() - began) / len(configs) < 0.02


def test_the_cost_model_tells_networks_apart() -> None:
    base = TrialConfig.from_mapping(TINY)
    info = data.info(base.data)
    model = CostModel(info)
    for change in ({}, {"optimizer.name": "adam"}, {"keep_float": ["layer1.*"]}):
        config = base.updated(change)
        assert model.cost(config) == estimate(config, info)


def test_a_grid_that_cannot_be_queued_is_refused() -> None:
    study = tiny_study(
        space={"weight_bits": {"choices": [1, 2, 4], "per": "layer"}}, sampler={"name": "grid"}
    )
    with pytest.raises(ConfigError, match="387,420,489 points"):
        next(blank_ledger(study).space.grid())
