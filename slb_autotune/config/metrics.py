"""Every metric, once: what it is called, which way is better, and how it is printed.

Objectives, run tables, fronts, hypervolume, the page, figures, MLflow, `list metrics` and the
terminal read this file. To add a metric, add an entry here and measure it under that name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from slb_autotune.errors import ConfigError, nearest

Direction = Literal["maximize", "minimize"]
DIRECTIONS: tuple[Direction, ...] = ("minimize", "maximize")

# When a metric exists: before training, after every epoch, at a trial's end, or on the test set.
Stage = Literal["before", "epoch", "end", "test"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    `ideal` is the best value there is, which makes hypervolume a share of a box. Figures and
    tables show values times `scale` in `unit`, with `decimals`; without decimals, four significant
    digits are shown. `searchable` metrics may be objectives and constraints of a search.
    """

    name: str
    label: str
    short: str
    direction: Direction
    stage: Stage
    unit: str = ""
    ideal: float = 0.0
    dtype: Literal["float64", "Int64"] = "float64"
    scale: float = 1.0
    decimals: int | None = None
    searchable: bool = True
    task: Literal["classification", "super_resolution"] | None = None

    @property
    def known_before_training(self) -> bool:
        """Whether the bits alone decide it."""
        return self.stage == "before"

    @property
    def sign(self) -> float:
        """-1 where more is better and 1 where less is: times the sign, smaller is better."""
        return -1.0 if self.direction == "maximize" else 1.0

    @property
    def needs_validation(self) -> bool:
        """Whether it is measured on the validation part."""
        return self.name.startswith("val_")

    @property
    def axis_label(self) -> str:
        """`size (kB)`."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def text(self, value: float, *, unit: bool = False) -> str:
        """The value as it is printed: `97.22`, `12.71 kB`; empty where there is none."""
        if value is None or math.isnan(value):
            return ""
        shown = value * self.scale
        if self.decimals is not None:
            number = f"{shown:,.{self.decimals}f}"
        else:
            number = f"{shown:,.0f}" if abs(shown) >= 1000 else f"{shown:.4g}"
        return f"{number} {self.unit}" if unit and self.unit else number

    def worse(self, one: float, other: float) -> bool:
        """Whether `one` is worse than `other`."""
        return one < other if self.direction == "maximize" else one > other


class MetricTable(Mapping[str, Metric]):
    """A read-only mapping from name to metric whose look-up error names the nearest one."""

    def __init__(self, *metrics: Metric) -> None:
        self._metrics = {metric.name: metric for metric in metrics}

    def __getitem__(self, name: str) -> Metric:
        metric = self._metrics.get(name)
        if metric is None:
            raise ConfigError(f"unknown metric {name!r}", nearest(name, self._metrics))
        return metric

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def __contains__(self, name: object) -> bool:
        return name in self._metrics

    def of_stage(self, *stages: Stage) -> list[Metric]:
        """The metrics that exist at these stages, in order."""
        return [metric for metric in self.values() if metric.stage in stages]


METRICS = MetricTable(
    Metric(
        "val_accuracy",
        "validation accuracy",
        "Val. accuracy",
        "maximize",
        "epoch",
        unit="%",
        ideal=100.0,
        decimals=2,
        task="classification",
    ),
    Metric(
        "val_accuracy_continuous",
        "validation accuracy, continuous weights",
        "Val. accuracy, W_c",
        "maximize",
        "epoch",
        unit="%",
        ideal=100.0,
        decimals=2,
        searchable=False,
        task="classification",
    ),
    Metric(
        "val_accuracy_top5",
        "validation accuracy, top 5",
        "Val. top-5",
        "maximize",
        "epoch",
        unit="%",
        ideal=100.0,
        decimals=2,
        task="classification",
    ),
    Metric(
        "val_psnr",
        "validation PSNR",
        "Val. PSNR",
        "maximize",
        "epoch",
        unit="dB",
        ideal=50.0,
        decimals=2,
        task="super_resolution",
    ),
    Metric("val_loss", "validation loss", "Val. loss", "minimize", "epoch"),
    Metric("train_loss", "training loss", "Train loss", "minimize", "epoch"),
    Metric(
        "test_accuracy",
        "test accuracy",
        "Test accuracy",
        "maximize",
        "test",
        unit="%",
        ideal=100.0,
        decimals=2,
        searchable=False,
        task="classification",
    ),
    Metric(
        "test_accuracy_top5",
        "test accuracy, top 5",
        "Test top-5",
        "maximize",
        "test",
        unit="%",
        ideal=100.0,
        decimals=2,
        searchable=False,
        task="classification",
    ),
    Metric(
        "test_psnr",
        "test PSNR",
        "Test PSNR",
        "maximize",
        "test",
        unit="dB",
        ideal=50.0,
        decimals=2,
        searchable=False,
        task="super_resolution",
    ),
    Metric(
        "size_bytes",
        "size",
        "Size",
        "minimize",
        "before",
        unit="kB",
        dtype="Int64",
        scale=1e-3,
        decimals=1,
    ),
    Metric("bitops", "bit operations", "Bit operations", "minimize", "before", "M", scale=1e-6),
    Metric(
        "average_weight_bits",
        "mean bits of a weight",
        "Mean bits",
        "minimize",
        "before",
        decimals=2,
    ),
    Metric("quantization_gap", "gap, mean |W_q - W_c|", "Gap", "minimize", "epoch"),
    Metric(
        "frozen_fraction",
        "frozen weights",
        "Frozen",
        "maximize",
        "epoch",
        unit="%",
        ideal=1.0,
        scale=100.0,
        decimals=1,
    ),
    Metric(
        "flip_rate",
        "flips in an epoch",
        "Flip rate",
        "minimize",
        "epoch",
        unit="%",
        scale=100.0,
        decimals=2,
    ),
    Metric("seconds", "training time", "Time", "minimize", "end", unit="s", decimals=1),
)

# The quality of a network, in the order in which they are looked for, and its cost.
QUALITY = ("val_accuracy", "val_psnr")
TEST_QUALITY = ("test_accuracy", "test_psnr")
COST = "size_bytes"


def quality_metric(*, super_resolution: bool, test: bool = False) -> str:
    """The metric by which networks of a task are compared."""
    return (TEST_QUALITY if test else QUALITY)[super_resolution]


@dataclass(frozen=True)
class Objectives:
    """The objectives of a study, in order."""

    metrics: tuple[str, ...]
    directions: tuple[Direction, ...]

    @classmethod
    def of(cls, directions: Mapping[str, Direction]) -> Objectives:
        """From metric -> direction."""
        return cls(tuple(directions), tuple(directions.values()))

    def items(self) -> list[tuple[str, Direction]]:
        """(metric, direction) of each objective."""
        return list(zip(self.metrics, self.directions, strict=True))

    @property
    def known(self) -> tuple[bool, ...]:
        """Which are known before training."""
        return tuple(METRICS[name].known_before_training for name in self.metrics)

    @property
    def measured(self) -> tuple[str, ...]:
        """Those that training decides."""
        return tuple(m for m, known in zip(self.metrics, self.known, strict=True) if not known)

    @property
    def quality(self) -> str | None:
        """The first objective that training decides: by it the best trial is found."""
        return next(iter(self.measured), None)

    def sign(self, metric: str) -> float:
        """-1 where the metric is maximised and 1 where it is minimised: smaller is better."""
        return -1.0 if dict(self.items())[metric] == "maximize" else 1.0

    def values(self, metrics: Mapping[str, float]) -> list[float]:
        """The objectives' values, NaN where one is missing."""
        return [float(metrics.get(name, math.nan)) for name in self.metrics]
