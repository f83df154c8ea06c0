"""Optuna's samplers by name, seeded for each trial by the study's seed and the trial's number.

A sampler is built anew before every trial, so a study that was killed and goes on draws what it
would have drawn.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
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

from slb_autotune.registry import SAMPLERS
from slb_autotune.study_config import SamplerConfig


def make_sampler(config: SamplerConfig, seed: int, number: int) -> BaseSampler:
    """The sampler for trial `number`."""
    return cast(BaseSampler, SAMPLERS[config.name].load()(config, seed_of(seed, number)))


def seed_of(*parts: object) -> int:
    """A 32-bit seed that depends on every part."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big")


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
    """NSGA-II whose independent draws depend on the parameter's name, not on their order."""
    return _NamedDraws(NSGAIISampler(seed=seed, population_size=config.population), seed)


def nsga3(config: SamplerConfig, seed: int) -> BaseSampler:
    """NSGA-III, likewise."""
    return _NamedDraws(NSGAIIISampler(seed=seed, population_size=config.population), seed)


def gp(config: SamplerConfig, seed: int) -> BaseSampler:
    """A Gaussian process after random trials."""
    return GPSampler(seed=seed, n_startup_trials=config.startup_trials)


def uniform(config: SamplerConfig, seed: int) -> BaseSampler:
    """Independent draws."""
    return RandomSampler(seed=seed)


def grid(config: SamplerConfig, seed: int) -> BaseSampler:
    """Fallback only: a grid is a list of points that the study goes through."""
    return RandomSampler(seed=seed)


class _NamedDraws(BaseSampler):
    """A sampler whose independent draws come from a generator of their own for each parameter."""

    def __init__(self, inner: BaseSampler, seed: int) -> None:
        self.inner, self.seed = inner, seed

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
        draws = RandomSampler(seed=seed_of(self.seed, param_name))
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
