"""Confirmations: what is trained again, and what is said of it."""

from pathlib import Path

import pytest

from slb_autotune.config.study import StudyConfig
from slb_autotune.errors import InputError
from slb_autotune.search.confirm import confirm_front, confirm_points
from tests.builders import TINY

POINTS = [{"method": "float"}, {"weight_bits": 1}, {"weight_bits": 1, "T_e": 10.0}]


def listed(folder: Path) -> StudyConfig:
    return StudyConfig.from_mapping(
        {"name": "table", "trial": TINY, "points": POINTS, "storage": {"folder": str(folder)}}
    )


def test_every_listed_point_is_trained_with_every_seed_on_all_data(tmp_path: Path) -> None:
    config = confirm_points(listed(tmp_path), seeds=2, epochs=7)
    assert (config.name, config.confirms) == ("table.confirm", "table")
    assert list(config.objectives) == ["test_accuracy", "size_bytes"]
    trials = [config.base().updated(point) for point in config.points]
    assert [trial.seed for trial in trials] == [0] * 3 + [1] * 3
    assert {trial.epochs for trial in trials} == {7}
    assert {trial.data.val_fraction for trial in trials} == {0.0}
    assert [trial.method for trial in trials] == ["float", "slb", "slb"] * 2
    assert [trial.temperature.T_e for trial in trials][2::3] == [10.0, 10.0]
    # What the file says of the data stays: a reduced budget is the reader's choice.
    assert {trial.data.train_images for trial in trials} == {
        listed(tmp_path).base().data.train_images
    }


def test_a_study_without_points_must_be_searched_first(tmp_path: Path) -> None:
    study = StudyConfig.from_mapping({"name": "s", "trial": TINY, "space": {"lr": [0.1, 0.2]}})
    with pytest.raises(InputError, match="no list of points"):
        confirm_points(study, 1, None)


def test_the_front_is_trained_again_on_all_data(tmp_path: Path) -> None:
    study = StudyConfig.from_mapping({"name": "s", "trial": TINY, "space": {"lr": [0.1, 0.2]}})
    front = [study.base().updated({"lr": lr}) for lr in (0.1, 0.2)]
    config = confirm_front(study, front, seeds=2, epochs=None)
    trials = [config.base().updated(point) for point in config.points]
    assert [(t.optimizer.lr, t.seed) for t in trials] == [(0.1, 0), (0.2, 0), (0.1, 1), (0.2, 1)]
    assert {t.data.train_images for t in trials} == {None}
    with pytest.raises(InputError, match="study 's' has no front to confirm"):
        confirm_front(study, [], seeds=1, epochs=None)
