from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest

from slb_autotune import errors
from slb_autotune.config import methods, registry
from slb_autotune.config.recipes import RECIPES
from slb_autotune.config.registry import DATASETS, NETWORKS, Registry
from slb_autotune.errors import ConfigError, InputError, SlbError, TrainingFailed, nearest

CODE = [
    value
    for module in (registry, methods)
    for value in vars(module).values()
    if isinstance(value, Registry)
]
ENTRIES = [
    pytest.param(entry, id=f"{registry.kind}-{entry.name}")
    for registry in CODE
    for entry in registry.values()
]
KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SlbError)
]


def test_an_error_shows_its_message_and_its_hint():
    assert str(SlbError("It broke.", "mend it.")) == "It broke. Hint: mend it."
    assert str(SlbError("It broke.")) == "It broke."


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_way_between_processes(kind):
    copy = pickle.loads(pickle.dumps(kind("message", "hint")))
    assert type(copy) is kind
    assert (copy.message, copy.hint) == ("message", "hint")


def test_bad_input_exits_with_2_and_failure_with_1():
    assert TrainingFailed.exit_code == SlbError.exit_code == 1
    assert {kind.exit_code for kind in KINDS if issubclass(kind, InputError)} == {2}


def test_the_nearest_word_is_named():
    assert nearest("epoch", ["epochs", "seed"]) == "did you mean 'epochs'?"


def test_all_words_are_listed_where_none_is_near():
    assert nearest("zzz", ["b", "a"]) == "known: a, b."
    assert nearest("zzz", []) == "none is known."


def test_a_long_list_of_words_is_cut_after_twenty():
    hint = nearest("zzz", [f"word{i:02}" for i in range(30)])
    assert "word19" in hint
    assert "word20" not in hint
    assert "..." in hint


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_target_imports(entry):
    assert callable(entry.load())


@pytest.mark.parametrize("registry", [*CODE, RECIPES], ids=lambda registry: registry.kind)
def test_every_registry_names_and_explains_its_entries(registry: Registry):
    assert len(registry) == len(list(registry)) > 0
    for name, entry in registry.items():
        assert entry.name == name
        assert entry.summary
        assert "\n" not in entry.summary


@pytest.mark.parametrize("registry", [*CODE, RECIPES], ids=lambda registry: registry.kind)
def test_a_look_up_error_names_the_nearest_entry(registry: Registry):
    name = next(iter(registry))
    with pytest.raises(ConfigError) as caught:
        registry[name + "x"]
    assert caught.value.message == f"unknown {registry.kind} {name + 'x'!r}"
    assert caught.value.hint == f"did you mean {name!r}?"


def test_a_name_that_is_not_there_is_not_contained():
    assert "resnet20" in NETWORKS
    assert "resnet21" not in NETWORKS


def test_the_registries_are_found():
    kinds = {"network", "data set", "method", "activation quantiser", "schedule"}
    assert kinds <= {registry.kind for registry in CODE}


def test_entries_are_frozen():
    with pytest.raises(FrozenInstanceError):
        NETWORKS["resnet20"].name = "other"
    with pytest.raises(TypeError):
        NETWORKS["mine"] = NETWORKS["resnet20"]


@pytest.mark.parametrize("registry", [NETWORKS, DATASETS], ids=lambda registry: registry.kind)
def test_networks_and_data_sets_have_a_task(registry: Registry):
    tasks = {entry.details["task"] for entry in registry.values()}
    assert tasks == {"classification", "super_resolution"}
