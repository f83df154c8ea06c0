"""What the options of a command change in a study."""

from __future__ import annotations

import pytest

from slb_autotune.cli.options import changed_study, chosen_points
from slb_autotune.config.study import StudyConfig
from slb_autotune.errors import InputError
from tests.builders import TINY, tiny_study

POINTS = [
    {"method": "float"},
    {"method": "slb", "weight_bits": 1, "activation_bits": 1},
    {"method": "slb", "weight_bits": 2, "T_e": 10},
    {"method": "lsq", "weight_bits": 1, "activation_bits": 1},
]
STUDY = StudyConfig.from_mapping({"name": "list", "trial": TINY, "points": POINTS})


@pytest.mark.parametrize(
    ("only", "left"),
    [
        (["method=slb"], [1, 2]),
        (["method=float,lsq"], [0, 3]),
        (["weight_bits=1", "method=lsq,slb"], [1, 3]),
        (["T_e=10.0"], [2]),
    ],
)
def test_only_keeps_the_points_with_these_values(only: list[str], left: list[int]) -> None:
    assert chosen_points(STUDY, only) == [POINTS[i] for i in left]


@pytest.mark.parametrize(
    ("only", "text"),
    [
        ("method=dsq", "no point is left Hint: method can be float, slb, lsq."),
        ("methd=slb", "got 'methd=slb' Hint: did you mean 'method'?"),
        ("method", "takes FIELD=VALUES"),
    ],
)
def test_a_choice_that_leaves_nothing_is_explained(only: str, text: str) -> None:
    with pytest.raises(InputError) as error:
        chosen_points(STUDY, [only])
    assert text in str(error.value)
    with pytest.raises(InputError, match="this study has none"):
        chosen_points(tiny_study(), ["method=slb"])


def test_set_reaches_the_trial_and_the_sections_of_the_study() -> None:
    settings = ["epochs=7", "resources.cpus=2", "resources.concurrent=1"]
    study = StudyConfig.from_mapping(changed_study(STUDY, settings=settings))
    assert study.base().epochs == 7
    assert (study.resources.cpus, study.resources.concurrent) == (2, 1)
    assert study.storage == STUDY.storage


def test_budgets_are_set_beside_other_fields_of_the_budget() -> None:
    values = changed_study(
        tiny_study(), settings=["budget.patience=5"], trials=7, seconds=60.0, name="other"
    )
    study = StudyConfig.from_mapping(values)
    assert (study.budget.trials, study.budget.seconds, study.budget.patience) == (7, 60.0, 5)
    assert study.name == "other"


def test_without_options_a_study_is_as_it_was() -> None:
    assert StudyConfig.from_mapping(changed_study(STUDY)) == STUDY
