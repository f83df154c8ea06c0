"""Search quality against a known truth: searches replayed on a table of finished trainings.

Every configuration of a small space was trained (`search_spaces/digits_truth.yaml`), at the full
budget and at every rung. A search that asks for one is given what training it gave, so thirty
seeds of five searches take minutes. What counts is epochs: those that a search would have spent
until its front has 95 % of the hypervolume of the true one. A configuration that is drawn twice is
trained twice, as those tools would do; ours reuses the result. A search that has spent twice what
the whole space costs is given up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution

from slb_autotune.analysis.tables import read_epochs, read_runs
from slb_autotune.config.metrics import COST, METRICS, Objectives, quality_metric
from slb_autotune.config.study import StudyConfig
from slb_autotune.errors import DataError
from slb_autotune.pareto import front, hypervolume
from slb_autotune.search.storage import blank_ledger
from slb_autotune.search.warm_start import enqueue_first_trials

SHARE = 0.95
MOST_TIMES = 2  # what the whole space costs
QUALITY = quality_metric(super_resolution=False)
OBJECTIVES = Objectives.of({name: METRICS[name].direction for name in (QUALITY, COST)})

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Spent:
    """A trial of a search: epochs spent so far, and its result where it was not stopped."""

    epochs: int
    result: tuple[float, float] | None


class Truth:
    """What training gave for every configuration of the space."""

    def __init__(self, runs: pd.DataFrame, epochs: pd.DataFrame) -> None:
        done = runs[runs["status"] == "done"]
        trials = done["trial"].astype(int).tolist()
        params = [_key(json.loads(cell)) for cell in done["params"]]
        self.keys = dict(zip(params, trials, strict=True))
        self.size = dict(zip(trials, done["size_bytes"].astype(int).tolist(), strict=True))
        self.epochs = int(done["epochs"].iloc[0])
        self.table = epochs[epochs["trial"].isin(trials)]
        last = int(epochs["rung"].max())
        self.full = _curves(epochs[epochs["rung"] == last])
        self.compressed = {
            int(part["epoch"].max()): _curves(part)
            for rung, part in epochs.groupby("rung")
            if rung != last
        }
        values = np.array([self.result(trial) for trial in self.keys.values()])
        members = values[front(values, OBJECTIVES.directions)]
        # Not the reference point of a study's hypervolume, from which every search would have
        # 95 % at once: here, less accurate than all of the front, or larger than all networks, is
        # worth nothing; a tenth of the front's span is added so that its own ends count.
        span = members.max(axis=0) - members.min(axis=0)
        self.reference = [members[:, 0].min() - span[0] / 10, values[:, 1].max() + span[1] / 10]
        self.members = members
        self.volume = hypervolume(members, self.reference, OBJECTIVES.directions)

    @classmethod
    def read(cls, folder: Path) -> Truth:
        """From the two tables that a study of the whole space was exported to."""
        runs, epochs = folder / "digits_truth.runs.csv", folder / "digits_truth.epochs.csv"
        if not runs.exists() or not epochs.exists():
            raise DataError(
                f"there is no table of the truth in {folder}",
                "run `slb-autotune search search_spaces/digits_truth.yaml`, then "
                "`slb-autotune export digits_truth --to results/runs`.",
            )
        return cls(read_runs(runs), read_epochs(epochs))

    def trial(self, params: Params) -> int:
        """The trial that had these parameters."""
        return self.keys[_key(params)]

    def result(self, trial: int) -> tuple[float, float]:
        """The objectives at the full budget."""
        return self.full[trial][self.epochs], float(self.size[trial])

    def at(self, trial: int, epochs: int, run: int) -> float:
        """Accuracy after so many epochs of a run whose schedule has length `run`."""
        curves = self.full if run == self.epochs else self.compressed[run]
        return curves[trial][epochs]

    def reached(self, results: list[tuple[float, float]]) -> float:
        """The share of the true hypervolume that these results have."""
        return (
            hypervolume(results, self.reference, OBJECTIVES.directions) / self.volume
            if results
            else 0.0
        )


def _curves(epochs: pd.DataFrame) -> dict[int, dict[int, float]]:
    """Trial -> epoch -> accuracy."""
    curves: dict[int, dict[int, float]] = {
        trial: dict(zip(rows["epoch"].astype(int), rows["val_accuracy"], strict=True))
        for trial, rows in epochs.groupby(epochs["trial"].astype(int))
    }
    return curves


def _key(params: Params) -> str:
    return json.dumps({name: params[name] for name in sorted(params)})


# -- the searches: each yields what it has after every trial -------------------------------


def ours(truth: Truth, config: StudyConfig, seed: int) -> Iterator[Spent]:
    """Our study as it would run, one trial at a time: warm starts, TPE and rungs."""
    ledger = blank_ledger(config.model_copy(update={"seed": seed}))
    enqueue_first_trials(ledger)
    spent = 0
    while (found := ledger.ask()) is not None:
        number, assignment = found
        trial = truth.trial(ledger.records[number].params)
        before, done, result = spent, (0, 0), None
        for phase in assignment.phases:
            run, until = phase.epochs, phase.until
            # A rung of the same run continues the one before; a compressed one starts again.
            spent += until - (done[1] if done[0] == run else 0)
            done = (run, until)
            row = {QUALITY: truth.at(trial, until, run), COST: truth.size[trial]}
            row |= {"trial_epochs": spent - before}
            if phase.final:
                result = truth.result(trial)
                ledger.tell(number, {**row, "status": "done"})
            elif not ledger.tell_rung(number, phase.rung, row):
                break
        yield Spent(spent, result)


def plain_optuna_search(truth: Truth, config: StudyConfig, seed: int) -> Iterator[Spent]:
    """Ray's OptunaSearch with several metrics, as its documentation shows it."""
    from ray.tune.search.optuna import OptunaSearch

    # Ray would make a slash in a name a dictionary in a dictionary.
    names = {name.replace("/", "|"): name for name in distributions(config)}
    space: dict[str, BaseDistribution] = {
        plain: distributions(config)[name] for plain, name in names.items()
    }
    searcher = OptunaSearch(space, metric=list(OBJECTIVES.metrics), mode=["max", "min"], seed=seed)

    def ask(number: int) -> Params:
        found = searcher.suggest(str(number)) or {}
        return {names[plain]: value for plain, value in found.items()}

    def tell(number: int, values: tuple[float, float]) -> None:
        searcher.on_trial_complete(str(number), dict(zip(OBJECTIVES.metrics, values, strict=True)))

    yield from _full_budget(truth, ask, tell)


def optuna_sampler(
    build: Callable[[int], optuna.samplers.BaseSampler],
) -> Callable[[Truth, StudyConfig, int], Iterator[Spent]]:
    """A sampler of Optuna's, every trial at the full budget."""

    def search(truth: Truth, config: StudyConfig, seed: int) -> Iterator[Spent]:
        study = optuna.create_study(directions=OBJECTIVES.directions, sampler=build(seed))
        space: dict[str, BaseDistribution] = {**distributions(config)}
        asked: dict[int, optuna.Trial] = {}

        def ask(number: int) -> Params:
            asked[number] = study.ask(space)
            return asked[number].params

        def tell(number: int, values: tuple[float, float]) -> None:
            study.tell(asked.pop(number), values)

        yield from _full_budget(truth, ask, tell)

    return search


def grid(truth: Truth, config: StudyConfig, seed: int) -> Iterator[Spent]:
    """Every configuration once, in an order drawn by the seed."""
    trials = np.random.default_rng(seed).permutation(list(truth.keys.values())).tolist()
    for number, trial in enumerate(trials, start=1):
        yield Spent(number * truth.epochs, truth.result(trial))


def _full_budget(
    truth: Truth,
    ask: Callable[[int], Params],
    tell: Callable[[int, tuple[float, float]], None],
) -> Iterator[Spent]:
    for number in range(MOST_TIMES * len(truth.keys)):
        result = truth.result(truth.trial(ask(number)))
        tell(number, result)
        yield Spent((number + 1) * truth.epochs, result)


SEARCHES: dict[str, Callable[[Truth, StudyConfig, int], Iterator[Spent]]] = {
    "random": optuna_sampler(lambda seed: optuna.samplers.RandomSampler(seed=seed)),
    "grid": grid,
    "nsga2": optuna_sampler(lambda seed: optuna.samplers.NSGAIISampler(seed=seed)),
    "plain OptunaSearch": plain_optuna_search,
    "ours": ours,
    "ours, one rung": lambda truth, config, seed: ours(truth, with_rung(config), seed),
}


def with_rung(config: StudyConfig) -> StudyConfig:
    """With early stopping: a third continues after a compressed quarter of the epochs."""
    stopping = {"rungs": [0.25], "keep": 0.33}
    return StudyConfig.from_mapping({**config.to_mapping(), "early_stopping": stopping})


def distributions(config: StudyConfig) -> dict[str, CategoricalDistribution]:
    """The space, as Optuna's own tools take it."""
    found = {d.name: d.distribution for d in blank_ledger(config).space.dimensions}
    return {name: d for name, d in found.items() if isinstance(d, CategoricalDistribution)}


def epochs_needed(truth: Truth, search: Iterator[Spent], share: float = SHARE) -> float:
    """Epochs spent until the results have that share of the true hypervolume; inf if never."""
    results: list[tuple[float, float]] = []
    for step in search:
        if step.result is not None:
            results.append(step.result)
            if truth.reached(results) >= share:
                return float(step.epochs)
    return float("inf")


def compare(truth: Truth, config: StudyConfig, seeds: int) -> pd.DataFrame:
    """One row per search: quartiles of the epochs it needs, and how often it never got there."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = []
    for name, search in SEARCHES.items():
        needed = [epochs_needed(truth, search(truth, config, seed)) for seed in range(seeds)]
        low, median, high = (np.quantile(needed, q, method="nearest") for q in (0.25, 0.5, 0.75))
        never = int(np.isinf(needed).sum())
        rows.append({"search": name, "epochs": median, "low": low, "high": high, "never": never})
    table = pd.DataFrame(rows)
    plain = table.loc[table["search"] == "plain OptunaSearch", "epochs"].iloc[0]
    return table.assign(of_plain=table["epochs"] / plain, seeds=seeds)


def rung_correlations(truth: Truth) -> pd.DataFrame:
    """How well a small budget predicts the end, for both ways to spend it."""
    from slb_autotune.analysis.budgets import budget_correlations

    table = budget_correlations(truth.table, QUALITY, truth.epochs)
    both = table[table["epochs"].isin(list(truth.compressed))]
    return both.sort_values("epochs", kind="stable", ignore_index=True)


def default_study(path: Path) -> StudyConfig:
    """The space of the study file under our default sampler, warm starts and early stopping."""
    study = StudyConfig.from_file(path)
    fixed = {"sampler", "budget", "early_stopping"}
    mapping = {name: value for name, value in study.to_mapping().items() if name not in fixed}
    return StudyConfig.from_mapping({**mapping, "budget": {"trials": 10_000}})
