"""Optuna's samplers by name, seeded for each trial by the study's seed and the trial's number.

A sampler is built anew before every trial, so a study that was killed and resumed draws what it
would have drawn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import (
    BaseSampler,
    GPSampler,
    NSGAIIISampler,
    NSGAIISampler,
    RandomSampler,
    TPESampler,
)
from optuna.study import Study
from optuna.trial import FrozenTrial

from slb_autotune.config.registry import SAMPLERS
from slb_autotune.config.study import SamplerConfig
from slb_autotune.training.seeds import derive_seed

Build = Callable[[SamplerConfig, int], BaseSampler]


def make_sampler(config: SamplerConfig, seed: int, number: int) -> BaseSampler:
    """The sampler for trial `number`."""
    build = cast(Build, SAMPLERS[config.name].load())
    return _NamedDraws(partial(build, config), derive_seed(seed, number, bits=32))


def tpe(config: SamplerConfig, seed: int) -> BaseSampler:
    """Multivariate, grouped TPE; running trials count as bad, so that trials at once differ."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return TPESampler(
            seed=seed,
            n_startup_trials=config.startup_trials,
            multivariate=True,
            group=True,
            constant_liar=True,
        )


def nsga2(config: SamplerConfig, seed: int) -> BaseSampler:
    """NSGA-II."""
    return _NSGAII(seed=seed, population_size=config.population)


def nsga3(config: SamplerConfig, seed: int) -> BaseSampler:
    """NSGA-III."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return NSGAIIISampler(seed=seed, population_size=config.population)


def gp(config: SamplerConfig, seed: int) -> BaseSampler:
    """A Gaussian process after random trials."""
    return GPSampler(seed=seed, n_startup_trials=config.startup_trials)


def uniform(config: SamplerConfig, seed: int) -> BaseSampler:
    """Independent draws."""
    return RandomSampler(seed=seed)


def grid(config: SamplerConfig, seed: int) -> BaseSampler:
    """Fallback only: a grid is a list of points that the study goes through."""
    return RandomSampler(seed=seed)


class _NSGAII(NSGAIISampler):
    """Parents by number: Optuna's order differs once it reads them back from the storage."""

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        parents = super().get_parent_population(study, generation)
        return sorted(parents, key=lambda trial: trial.number)


class _NamedDraws(BaseSampler):
    """A sampler whose independent draws come from a generator of their own for each parameter.

    A trial that was killed while it was drawn keeps what it has, and the rest does not shift.
    """

    def __init__(self, build: Callable[[int], BaseSampler], seed: int) -> None:
        self.build, self.seed = build, seed
        self.inner = build(seed)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self.inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        draws = self.build(derive_seed(self.seed, param_name, bits=32))
        return draws.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.inner.before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: optuna.trial.TrialState,
        values: Sequence[float] | None,
    ) -> None:
        self.inner.after_trial(study, trial, state, values)
