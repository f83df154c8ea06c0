"""The space of a study: study file -> parameters -> TrialConfig."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import BaseTrial

from slb_autotune.config.section import BIT_FIELDS, SHORT_NAMES
from slb_autotune.config.study import ParameterConfig, Scalar, StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import ConfigError

# Every point of a grid is queued before the first trial.
LARGEST_GRID = 20_000


@dataclass(frozen=True)
class Dimension:
    """One parameter: its flat name, the field it sets, and what it may be.

    A bit-width's name is `weight_bits/PATTERN`; it sets the layers that match.
    """

    name: str
    distribution: BaseDistribution
    when: tuple[tuple[str, tuple[Scalar, ...]], ...] = ()


class Space:
    """Everything that a study may try."""

    def __init__(self, study: StudyConfig, layers: list[str]) -> None:
        self.base = study.base()
        self._base_values = self.base.flat()
        self.grid_points = study.sampler.grid_points
        found = [d for name in study.space for d in _dimensions(name, study.space, layers)]
        self.dimensions = _parents_first(found)

    def suggest(self, trial: BaseTrial) -> dict[str, Any]:
        """Draw the parameters that exist, in the order in which conditions need them."""
        values: dict[str, Any] = {}
        for dimension in self.dimensions:
            if self._exists(dimension, values):
                values[dimension.name] = _suggest(trial, dimension)
        return values

    def config(self, values: Mapping[str, Any], seed: int | None = None) -> TrialConfig:
        """The trial of these parameters."""
        changes: dict[str, Any] = {} if seed is None else {"seed": seed}
        for name, value in values.items():
            field, slash, pattern = name.partition("/")
            if slash:
                changes.setdefault(field, {})[pattern] = value
            else:
                changes[name] = value
        for field in BIT_FIELDS:
            if set(changes.get(field, {}) if isinstance(changes.get(field), dict) else ()) == {
                "*"
            }:
                changes[field] = changes[field]["*"]
        return self.base.updated(changes)

    def _exists(self, dimension: Dimension, values: Mapping[str, Any]) -> bool:
        return all(
            values.get(field, self._base_values.get(field)) in allowed
            for field, allowed in dimension.when
        )

    def size(self) -> float:
        """How many different trials there are; infinite with a continuous range."""
        decisive = {field for dimension in self.dimensions for field, _ in dimension.when}

        def count(position: int, values: dict[str, Any]) -> float:
            if position == len(self.dimensions):
                return 1.0
            dimension = self.dimensions[position]
            if not self._exists(dimension, values):
                return count(position + 1, values)
            options = _count(dimension.distribution)
            if dimension.name not in decisive or math.isinf(options):
                return options * count(position + 1, values)
            axis = _axis(dimension.distribution, int(options))
            return sum(count(position + 1, {**values, dimension.name: v}) for v in axis)

        return count(0, {})

    def grid(self) -> Iterator[dict[str, Any]]:
        """Every combination; a continuous range gives `grid_points` values."""
        axes = [_axis(d.distribution, self.grid_points) for d in self.dimensions]
        if (count := math.prod(map(len, axes))) > LARGEST_GRID:
            raise ConfigError(
                f"a grid of {count:,} points is more than can be queued ({LARGEST_GRID:,})",
                "search fewer values, bits per stage instead of per layer, or use sampler: tpe.",
            )
        seen: set[tuple[tuple[str, Any], ...]] = set()
        for row in product(*axes):
            values: dict[str, Any] = {}
            for dimension, value in zip(self.dimensions, row, strict=True):
                if self._exists(dimension, values):
                    values[dimension.name] = value
            key = tuple(values.items())
            if key not in seen:
                seen.add(key)
                yield values

    def draw(self, random: np.random.Generator) -> dict[str, Any]:
        """One independent draw, for estimates."""
        values: dict[str, Any] = {}
        for dimension in self.dimensions:
            if self._exists(dimension, values):
                values[dimension.name] = _draw(dimension.distribution, random)
        return values


def _suggest(trial: BaseTrial, dimension: Dimension) -> Any:
    name, distribution = dimension.name, dimension.distribution
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(name, distribution.low, distribution.high)
    assert isinstance(distribution, FloatDistribution)
    return trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)


def contains(distribution: BaseDistribution, value: Any) -> bool:
    """Whether `value` lies in the distribution."""
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and distribution.low <= value <= distribution.high


def smallest(distribution: BaseDistribution) -> Any:
    """The smallest value of the distribution."""
    if isinstance(distribution, CategoricalDistribution):
        return min(distribution.choices)  # type: ignore[type-var]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return distribution.low


def stage_of(layer: str) -> str:
    """The stage of a layer is the first part of its name: layer1.0.conv2 -> layer1."""
    return layer.split(".")[0]


def _dimensions(
    name: str, space: Mapping[str, ParameterConfig], layers: list[str]
) -> list[Dimension]:
    parameter = space[name]
    distribution = distribution_of(parameter)
    when = tuple(
        (_drawn_as(name, field, space), value if isinstance(value, tuple) else (value,))
        for field, value in parameter.when.items()
    )
    if name not in BIT_FIELDS:
        return [Dimension(SHORT_NAMES.get(name, name), distribution, when)]
    if parameter.per == "network":
        patterns = ["*"]
    elif parameter.per == "layer":
        patterns = layers
    else:
        stages = dict.fromkeys(stage_of(layer) for layer in layers)
        patterns = [f"{stage}.*" if stage not in layers else stage for stage in stages]
    return [Dimension(f"{name}/{pattern}", distribution, when) for pattern in patterns]


def _drawn_as(name: str, field: str, space: Mapping[str, ParameterConfig]) -> str:
    """The dimension, or the fixed field, that the condition of `name` on `field` looks at."""
    if field not in BIT_FIELDS or field not in space:
        return SHORT_NAMES.get(field, field)
    if space[field].per != "network":
        raise ConfigError(
            f"space.{name}.when: {field} differ from {space[field].per} to {space[field].per}",
            "a condition on bits needs `per: network`.",
        )
    return f"{field}/*"


def distribution_of(parameter: ParameterConfig) -> BaseDistribution:
    """The distribution that a parameter is drawn from."""
    if parameter.choices is not None:
        return CategoricalDistribution(parameter.choices)
    if parameter.integer is not None:
        return IntDistribution(*parameter.integer)
    if parameter.log is not None:
        return FloatDistribution(*parameter.log, log=True)
    assert parameter.uniform is not None
    return FloatDistribution(*parameter.uniform)


def _parents_first(dimensions: list[Dimension]) -> list[Dimension]:
    """Order so that a condition is drawn before what depends on it."""
    names = {dimension.name for dimension in dimensions}
    placed: list[Dimension] = []
    waiting = list(dimensions)
    while waiting:
        done = {dimension.name for dimension in placed}
        ready = [d for d in waiting if all(f in done or f not in names for f, _ in d.when)]
        if not ready:
            cycle = ", ".join(dimension.name for dimension in waiting)
            raise ConfigError(f"space: the conditions of {cycle} depend on each other in a circle")
        placed += ready
        waiting = [dimension for dimension in waiting if dimension not in ready]
    return placed


def _count(distribution: BaseDistribution) -> float:
    if isinstance(distribution, CategoricalDistribution):
        return len(distribution.choices)
    if isinstance(distribution, IntDistribution):
        return distribution.high - distribution.low + 1
    return math.inf


def _axis(distribution: BaseDistribution, points: int) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    if isinstance(distribution, IntDistribution):
        count = distribution.high - distribution.low + 1
        steps = np.linspace(distribution.low, distribution.high, min(points, count))
        return sorted({round(float(step)) for step in steps})
    assert isinstance(distribution, FloatDistribution)
    space = np.geomspace if distribution.log else np.linspace
    return [float(value) for value in space(distribution.low, distribution.high, points)]


def _draw(distribution: BaseDistribution, random: np.random.Generator) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[random.integers(len(distribution.choices))]
    if isinstance(distribution, IntDistribution):
        return int(random.integers(distribution.low, distribution.high + 1))
    assert isinstance(distribution, FloatDistribution)
    if distribution.log:
        low, high = math.log(distribution.low), math.log(distribution.high)
        return math.exp(random.uniform(low, high))
    return float(random.uniform(distribution.low, distribution.high))
