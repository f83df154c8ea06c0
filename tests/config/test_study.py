"""A study file: what it may say, what it means, and what is said of its mistakes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from slb_autotune.config.files import parse_yaml
from slb_autotune.config.metrics import METRICS
from slb_autotune.config.study import (
    Constraint,
    ParameterConfig,
    StudyConfig,
    parse_amount,
    parse_constraint,
)
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import ConfigError
from tests.builders import TINY

SPACE = {"T_e": {"log": [1, 10000]}}

SEARCHABLE = tuple(
    metric.name
    for metric in METRICS.values()
    if metric.searchable and metric.task != "super_resolution"
)


def study(**changes: Any) -> StudyConfig:
    return StudyConfig.from_mapping({"name": "s", "trial": TINY, "space": SPACE, **changes})


def refused(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        study(**changes)
    return str(caught.value)


WHOLE: dict[str, Any] = {
    "name": "whole-1.2_x",
    "recipe": "digits",
    "trial": {"epochs": 5, "optimizer": {"lr": 0.05}, "keep_float": ["layer1.*"]},
    "space": {
        "T_e": {"log": [1, 10000], "when": {"schedule": ["exp", "sin"], "batch_size": 50}},
        "schedule": ["exp", "sin", "linear"],
        "epochs": {"integer": [2, 5]},
        "label_smoothing": {"uniform": [0.0, 0.25]},
        "optimizer.nesterov": [True, False],
        "weight_bits": {"choices": [1, 2, 4], "per": "layer"},
        "activation_bits": {"choices": [4, 32], "per": "stage", "when": {"schedule": "exp"}},
    },
    "objectives": {"val_accuracy": "maximize", "bitops": "minimize", "val_loss": "minimize"},
    "constraints": ["size_bytes <= 64 kB", "val_accuracy >= 90"],
    "sampler": {"name": "nsga2", "population": 8},
    "budget": {"trials": None, "epochs": 1000, "patience": 20, "growth": 0.0},
    "resources": {"concurrent": 3, "gpus": "auto"},
    "early_stopping": {"rungs": [0.1, 0.5], "budget": "prefix", "spared": 0.0},
    "warm_start": {"paper": False, "study": "earlier"},
    "storage": {"folder": "/shared/runs", "ray": "auto"},
    "seed": 7,
}
POINTS: dict[str, Any] = {
    "name": "points",
    "points": [{"weight_bits": {"*": 2, "layer1.*": 4}}, {"lr": 0.01, "schedule": "sin"}],
    "confirms": "whole",
    "objectives": {"test_accuracy": "maximize"},
}


@pytest.mark.parametrize("values", [WHOLE, POINTS, {"name": "least", "space": SPACE}])
def test_yaml_and_back(values: dict[str, Any], tmp_path: Path) -> None:
    config = StudyConfig.from_mapping(values)
    again = StudyConfig.from_mapping(parse_yaml(config.to_yaml(), "again"))
    assert again == config
    path = tmp_path / "file.yaml"
    path.write_text(config.to_yaml())
    assert StudyConfig.from_file(path) == config
    assert StudyConfig.from_mapping(config.to_mapping()) == config


@pytest.mark.parametrize("word", ["1e3", "007", "1.5"])
def test_words_that_look_like_numbers_stay_words(word: str) -> None:
    config = study(name=word, storage={"folder": word})
    assert StudyConfig.from_mapping(parse_yaml(config.to_yaml(), "again")) == config


def test_the_yaml_says_only_what_is_not_the_default() -> None:
    assert yaml.safe_load(study(budget={"trials": 40}).to_yaml()).keys() == {
        *("name", "trial", "space")
    }


def test_a_study_is_named_by_its_file_unless_it_says_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "first.yaml"
    path.write_text("space: {T_e: {log: [1, 1e4]}}\n")
    assert StudyConfig.from_file(path).name == "first"
    path.write_text("name: second\nspace: {T_e: {log: [1, 1e4]}}\n")
    assert StudyConfig.from_file(path).name == "second"


def test_the_fixed_part_starts_from_the_recipe() -> None:
    config = StudyConfig.from_mapping(WHOLE)
    assert config.base() == TrialConfig.from_mapping(
        {
            "network": {"name": "resnet20", "width": 8},
            "data": {"name": "digits", "augment": False},
            "batch_size": 50,
            **{"epochs": 5, "lr": 0.05, "keep_float": ["layer1.*"]},
        }
    )


def test_short_forms() -> None:
    short = study(sampler="random", space={"schedule": ["exp", "sin"]})
    long = study(sampler={"name": "random"}, space={"schedule": {"choices": ["exp", "sin"]}})
    assert short == long
    assert study().sampler.name == "tpe"


# -- goals ---------------------------------------------------------------------------------


def test_by_default_accuracy_or_psnr_against_size() -> None:
    assert dict(study().goals().items()) == {
        "val_accuracy": "maximize",
        "size_bytes": "minimize",
    }
    photos = {"network.name": "vdsr", "data.name": "photos"}
    assert study(trial=photos).goals().metrics == ("val_psnr", "size_bytes")


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_one_to_four_objectives_in_their_order(count: int) -> None:
    wanted = dict.fromkeys(SEARCHABLE[:count], "maximize")
    assert study(objectives=wanted).goals().metrics == SEARCHABLE[:count]


def test_five_objectives_are_too_many() -> None:
    text = refused(objectives=dict.fromkeys(SEARCHABLE[:5], "minimize"))
    assert "a study has one to four objectives; got 5" in text


def test_an_unknown_metric_names_the_nearest() -> None:
    text = refused(objectives={"val_acuracy": "maximize"})
    assert "unknown metric 'val_acuracy'" in text
    assert "did you mean 'val_accuracy'?" in text


@pytest.mark.parametrize("where", ["objectives", "constraints"])
def test_a_metric_of_another_task_is_refused(where: str) -> None:
    values = {"objectives": {"val_psnr": "maximize"}, "constraints": ["val_psnr >= 30"]}
    text = refused(**{where: values[where]})
    assert "val_psnr is not measured on data set 'digits', which is for classification" in text
    assert "use val_accuracy or val_accuracy_top5." in text


def test_a_direction_is_maximize_or_minimize() -> None:
    assert "'maximize' or 'minimize'; got 'max'" in refused(objectives={"val_loss": "max"})


@pytest.mark.parametrize("metric", ["test_accuracy", "test_accuracy_top5"])
def test_a_search_never_sees_the_test_set(metric: str) -> None:
    for text in (
        refused(objectives={metric: "maximize"}),
        refused(constraints=[f"{metric} >= 90"]),
    ):
        assert f"{metric} cannot be searched for" in text
        assert "a search never sees the test set" in text
    assert study(objectives={metric: "maximize"}, confirms="s").goals().metrics == (metric,)


# -- constraints ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("65536", 65536),
        ("64 kB", 64000),
        ("64kB", 64000),
        ("64 KiB", 65536),
        ("1.5 MB", 1.5e6),
        ("2 MiB", 2 * 2**20),
        ("1 GB", 1e9),
        ("1 GiB", 2**30),
        ("1e6", 1e6),
        ("2.5e-1", 0.25),
        ("40 M", 4e7),
        ("3 k", 3000),
        ("12 B", 12),
        ("-3", -3),
    ],
)
def test_amounts_with_units(text: str, amount: float) -> None:
    assert parse_amount(text) == amount
    assert parse_constraint(f"size_bytes<={text}") == Constraint("size_bytes", True, amount)


@pytest.mark.parametrize("text", ["", "kB", "64 KB", "64 bytes", "1..2", "e", "1-2", "64 kB x"])
def test_what_is_not_an_amount(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an amount.*write 65536, 64 kB or 64 KiB"):
        parse_amount(text)


@pytest.mark.parametrize("text", ["size_bytes", "size_bytes < 3", "size_bytes = 3", "3 >= bitops"])
def test_what_is_not_a_constraint(text: str) -> None:
    found = refused(constraints=[text])
    assert f"{text!r} is not a constraint" in found
    assert "write `size_bytes <= 64 kB`" in found


def test_an_unknown_metric_in_a_constraint_names_the_nearest() -> None:
    found = refused(constraints=["size_byte <= 64 kB"])
    assert "unknown metric 'size_byte'" in found
    assert "did you mean 'size_bytes'?" in found


def test_by_how_much_a_constraint_is_violated() -> None:
    upper, lower = parse_constraint("size_bytes <= 200"), parse_constraint("val_accuracy >= 80")
    assert [upper.violation(v) for v in (100, 200, 300)] == [-0.5, 0.0, 0.5]
    assert [lower.violation(v) for v in (100, 80, 60)] == [-0.25, 0.0, 0.25]
    assert (upper.known_before, lower.known_before) == (True, False)


@pytest.mark.parametrize("limit", [64000, 1234567, 1234568, 0.5, 1e9])
def test_a_constraint_is_written_as_it_can_be_read(limit: float) -> None:
    constraint = Constraint("size_bytes", True, limit)
    assert parse_constraint(str(constraint)) == constraint


# -- the space -----------------------------------------------------------------------------


def test_a_study_has_a_space_or_points() -> None:
    assert "a study needs a space or points" in refused(space={})
    assert "give a space or points, not both" in refused(points=[{"lr": 0.1}])
    assert study(space={}, points=[{"lr": 0.1}]).points == ({"lr": 0.1},)


def test_a_bad_point_is_refused() -> None:
    found = refused(space={}, points=[{"lr": 0.1}, {"lrr": 0.1}])
    assert "unknown key 'lrr'" in found
    assert "did you mean 'lr'?" in found


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        ({"log": [10, 1]}, "a range must rise; got [10.0, 1.0]"),
        ({"uniform": [2, 2]}, "a range must rise; got [2.0, 2.0]"),
        ({"log": [0, 1]}, "a log range must be above 0; got [0.0, 1.0]"),
        ([], "choices must not be empty"),
        ([1.0, 1.0], "choices must differ from each other"),
        ({}, "give exactly one of choices, uniform, log and integer"),
        (
            {"log": [1, 2], "choices": [1.0]},
            "give exactly one of choices, uniform, log and intege",
        ),
        ({"logs": [1, 2]}, "unknown key 'logs' Hint: did you mean 'log'?"),
    ],
)
def test_a_parameter_that_is_none(parameter: Any, text: str) -> None:
    found = refused(space={"T_e": parameter})
    assert found.startswith("study: space.T_e: ")
    assert text in found


@pytest.mark.parametrize(
    ("space", "text"),
    [
        ({"schedule": ["exp", "expo"]}, "unknown schedule 'expo'"),
        ({"schedule": ["expo"]}, "did you mean 'exp'?"),
        ({"lr": {"uniform": [-1, 1]}}, "space.optimizer.lr: "),
        ({"lr": ["fast"]}, "space.optimizer.lr: "),
        ({"epochs": {"uniform": [1.5, 3]}}, "space.epochs: "),
        ({"network.name": ["resnet20", "vdsr"]}, "is for super_resolution but data set 'digits'"),
        ({"learning_rate": [0.1]}, "unknown key 'learning_rate'"),
        ({"optimizer.rate": [0.1]}, "unknown key 'rate'"),
        ({"T_e": {"log": [1, 10], "per": "stage"}}, "only weight_bits and activation_bits have"),
        ({"weight_bits": [1, 5]}, "bits are choices of (1, 2, 3, 4, 8, 32); got 5"),
        (
            {"weight_bits": {"integer": [1, 4]}},
            "bits are choices of (1, 2, 3, 4, 8, 32); got a ra",
        ),
        ({"activation_bits": {"choices": [6], "per": "layer"}}, "got 6"),
        ({"weight_bits": {"choices": [1], "per": "block"}}, "'network', 'stage' or 'layer'"),
    ],
)
def test_what_a_field_cannot_be(space: dict[str, Any], text: str) -> None:
    assert text in refused(space=space)


@pytest.mark.parametrize("field", ["T_e", "weight_bits"])
def test_a_condition_on_an_unknown_field_names_the_nearest(field: str) -> None:
    found = refused(space={field: {"choices": [1, 2], "when": {"schedul": "exp"}}})
    assert f"space.{field}.when: unknown field 'schedul'" in found
    assert "did you mean 'schedule'?" in found


@pytest.mark.parametrize("name", ["schedule", "temperature.schedule"])
def test_a_condition_may_name_a_searched_or_a_fixed_field(name: str) -> None:
    found = study(space={"T_e": {"choices": [1.0, 2.0], "when": {name: "exp"}}})
    assert found.space["T_e"].when == {name: "exp"}


@pytest.mark.parametrize("searched", [{}, {"schedule": ["exp", "sin"]}], ids=["fixed", "searched"])
@pytest.mark.parametrize("name", ["schedule", "temperature.schedule"])
def test_a_condition_that_never_holds_is_refused(name: str, searched: dict) -> None:
    text = refused(space={**searched, "T_e": {"choices": [1.0, 2.0], "when": {name: ["expo"]}}})
    assert f"space.T_e.when: {name} is never 'expo'" in text
    assert "did you mean 'exp'?" in text


@pytest.mark.parametrize("names", [("T_s", "T_e"), ("temperature.T_s", "temperature.T_e")])
def test_ranges_of_t_s_and_t_e_may_overlap(names: tuple[str, str]) -> None:
    space = {names[0]: {"log": [0.01, 5000]}, names[1]: {"log": [0.001, 10000]}}
    assert study(space=space).space.keys() == set(names)


def test_a_field_given_by_two_names_is_refused() -> None:
    space = {"T_e": {"log": [1, 10]}, "temperature.T_e": {"log": [1, 100]}}
    assert "temperature.T_e is given twice" in refused(space=space)


def test_a_range_of_whole_numbers_is_kept_whole() -> None:
    parameter = study(space={"epochs": {"integer": [1, 3]}}).space["epochs"]
    assert parameter == ParameterConfig(integer=(1, 3))


# -- the rest ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sampler": "tpee"}, "did you mean 'tpe'?"),
        ({"name": "a b"}, "study: name: "),
        ({"name": "../up"}, "study: name: "),
        ({"budgets": {}}, "unknown key 'budgets' Hint: did you mean 'budget'?"),
        ({"budget": {"trials": 0}}, "study: budget.trials: "),
        ({"budget": {"trial": 3}}, "budget: unknown key 'trial' Hint: did you mean 'trials'?"),
        ({"early_stopping": {"rungs": [0.5, 0.1]}}, "rungs must rise; got [0.5, 0.1]"),
        ({"early_stopping": {"rungs": [1.0]}}, "early_stopping.rungs"),
        ({"early_stopping": {"keep": 1.0}}, "early_stopping.keep"),
        ({"recipe": "digit"}, "did you mean 'digits'?"),
        ({"trial": {"lrr": 1}}, "did you mean 'lr'?"),
        ({"seed": -1}, "study: seed: "),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], text: str) -> None:
    assert text in refused(**changes)


def test_a_study_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        study().seed = 3  # type: ignore[misc]
