"""The metrics: each is described once, and everything that shows one reads it there."""

import math
from dataclasses import FrozenInstanceError

import pytest

from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS
from slb_autotune.config.metrics import (
    COST,
    METRICS,
    QUALITY,
    TEST_QUALITY,
    Objectives,
    quality_metric,
)
from slb_autotune.errors import ConfigError

# The names that scripts outside the repository use.
PROMISED = (
    *("val_accuracy", "val_psnr", "val_loss", "train_loss", "test_accuracy", "test_psnr"),
    *("val_accuracy_top5", "test_accuracy_top5", "size_bytes", "bitops", "average_weight_bits"),
    *("quantization_gap", "frozen_fraction", "flip_rate", "seconds"),
)


def test_the_promised_names_are_there() -> None:
    assert set(PROMISED) <= set(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_frozen_and_says_all_of_itself(name: str) -> None:
    metric = METRICS[name]
    assert metric.name == name
    assert metric.label
    assert metric.short
    assert metric.direction in ("maximize", "minimize")
    # What is best is at the end that the direction points to.
    assert metric.ideal > 0 if metric.direction == "maximize" else metric.ideal == 0
    with pytest.raises(FrozenInstanceError):
        metric.label = "other"  # type: ignore[misc]


def test_every_metric_is_a_column_and_those_of_an_epoch_are_in_both_tables() -> None:
    assert {name: RUN_COLUMNS[name] for name in METRICS} == {
        name: metric.dtype for name, metric in METRICS.items()
    }
    assert {m.name for m in METRICS.of_stage("epoch")} <= EPOCH_COLUMNS.keys()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("val_accuracy", 97.2222, "97.22 %"),
        ("size_bytes", 12712, "12.7 kB"),
        ("bitops", 41_000_000, "41 M"),
        ("val_loss", 0.123456, "0.1235"),
        ("frozen_fraction", 0.5, "50.0 %"),
        ("val_psnr", math.nan, ""),
    ],
)
def test_a_value_is_printed_in_its_unit(name: str, value: float, text: str) -> None:
    assert METRICS[name].text(value, unit=True) == text
    assert METRICS[name].text(value) == text.partition(" ")[0]


def test_an_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown metric 'val_acuracy'") as caught:
        METRICS["val_acuracy"]
    assert caught.value.hint == "did you mean 'val_accuracy'?"


def test_quality_depends_on_the_task_and_the_set() -> None:
    assert quality_metric(super_resolution=False) == "val_accuracy"
    assert quality_metric(super_resolution=True) == "val_psnr"
    assert quality_metric(super_resolution=True, test=True) == "test_psnr"
    assert {*QUALITY, *TEST_QUALITY, COST} <= set(METRICS)


def test_objectives_know_what_training_decides() -> None:
    objectives = Objectives.of(
        {"size_bytes": "minimize", "val_loss": "minimize", "val_accuracy": "maximize"}
    )
    assert objectives.known == (True, False, False)
    assert objectives.measured == ("val_loss", "val_accuracy")
    assert objectives.quality == "val_loss"
    assert objectives.sign("val_accuracy") == -1.0
    assert objectives.values({"val_loss": 1, "size_bytes": 2})[:2] == [2.0, 1.0]
    assert math.isnan(objectives.values({})[0])
    assert Objectives.of({"bitops": "minimize"}).quality is None
