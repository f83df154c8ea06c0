"""What can run at all: constraints that the bits alone decide, and memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from slb_autotune import data
from slb_autotune.config.metrics import METRICS
from slb_autotune.config.study import StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.cost import Cost, CostModel
from slb_autotune.data import DataInfo
from slb_autotune.errors import ConfigError
from slb_autotune.quant.convert import resolve_bits
from slb_autotune.search.records import find_study
from slb_autotune.search.space import Space, smallest
from slb_autotune.training.device import free_memory, resolve_device

FAR_TOO_MANY = 1000  # trials at once on a cluster: Ray starts as many as fit


@dataclass(frozen=True)
class Estimate:
    """What is known of a configuration before it is trained.

    `violations` maps each constraint to by how much it is broken (0 or less: it holds); `reason`
    says which one makes it infeasible and is empty where none does.
    """

    costs: dict[str, float]
    bits: dict[str, int]
    training_bytes: int
    violations: Mapping[str, float]
    reason: str


class Feasibility:
    """Costs of a study's configurations, held against its constraints and the free memory."""

    def __init__(self, config: StudyConfig) -> None:
        self.config, self.base = config, config.base()
        self.constraints = config.parsed_constraints
        self._costs: dict[DataInfo, CostModel] = {}

    def costs_of(self, config: TrialConfig) -> CostModel:
        """The cost model of a configuration's own data set."""
        info = data.info(config.data)
        if info not in self._costs:
            self._costs[info] = CostModel(info)
        return self._costs[info]

    @cached_property
    def layers(self) -> list[str]:
        """The layers whose bits can be set."""
        return self.costs_of(self.base).layers(self.base)

    @cached_property
    def memory(self) -> int | None:
        """Bytes free on the device; None where that is not known."""
        return free_memory(resolve_device(self.base.device))

    @cached_property
    def float_costs(self) -> dict[str, float]:
        """What the network costs with 32-bit weights and activations."""
        as_float = self.base.updated({"weight_bits": 32, "activation_bits": 32})
        return self.costs_of(as_float).cost(as_float).metrics()

    def check(self, config: TrialConfig) -> Estimate:
        """The costs of a configuration, and whether it may run."""
        cost = self.costs_of(config).cost(config)
        violations, reason = self._violations(cost)
        return Estimate(
            cost.metrics(), self._bits(config), cost.training_bytes, violations, reason
        )

    def _bits(self, config: TrialConfig) -> dict[str, int]:
        """Layer -> bits of its weights; empty for a float network."""
        if not config.quantises:
            return {}
        return resolve_bits(
            "weight_bits", config.weight_bits, self.costs_of(config).layers(config)
        )

    def _violations(self, cost: Cost) -> tuple[dict[str, float], str]:
        found: dict[str, float] = {}
        reason = ""
        for constraint in self.constraints:
            if constraint.known_before:
                value = cost.metrics()[constraint.metric]
                found[str(constraint)] = constraint.violation(value)
                if found[str(constraint)] > 0:
                    side = "above" if constraint.upper else "below"
                    reason = f"{constraint.metric} is {value:g}, {side} {constraint.limit:g}"
        if self.memory is not None and cost.training_bytes > self.memory:
            found["memory"] = cost.training_bytes / self.memory - 1
            reason = f"training needs {cost.training_bytes / 1e9:.1f} GB"
        return found, reason


def check_study(config: StudyConfig) -> None:
    """Refuse objectives that nothing measures and constraints that no allocation can meet."""
    base, constraints = config.base(), config.parsed_constraints
    if config.warm_start.study is not None:
        find_study(Path(config.storage.folder), config.warm_start.study)
    wanted = [*config.goals().metrics, *(c.metric for c in constraints)]
    validated = [metric for metric in wanted if METRICS[metric].needs_validation]
    if validated and base.data.val_fraction == 0:
        raise ConfigError(
            f"{validated[0]} is asked for, but data.val_fraction is 0: nothing is held out",
            "set data.val_fraction to 0.1 or so.",
        )
    known = [c for c in constraints if c.known_before and c.upper]
    if not known or config.points:
        return
    feasibility = Feasibility(config)
    costs = feasibility.check(least_config(Space(config, feasibility.layers))).costs
    for constraint in known:
        if constraint.violation(costs[constraint.metric]) > 0:
            raise ConfigError(
                f"no allocation can meet {constraint}: the least is "
                f"{costs[constraint.metric]:,.0f}",
                "raise the limit, allow fewer bits, or narrow the network.",
            )


def least_config(space: Space) -> TrialConfig:
    """The trial with the fewest bits and the smallest width that the space allows."""
    values: dict[str, Any] = {
        dimension.name: smallest(dimension.distribution)
        for dimension in space.dimensions
        if "/" in dimension.name or dimension.name == "network.width"
    }
    return space.config(values)


def concurrent_trials(config: StudyConfig) -> int:
    """Trials at once: as asked, or what fits the machine."""
    if config.resources.concurrent is not None:
        return config.resources.concurrent
    if config.storage.ray is not None:
        return FAR_TOO_MANY
    return max(1, int((os.cpu_count() or 1) / config.resources.cpus))
