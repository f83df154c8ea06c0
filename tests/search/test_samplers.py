"""Every sampler: ask and tell with one to three objectives, and the same draws after a kill."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from slb_autotune.config.registry import SAMPLERS
from slb_autotune.config.study import SamplerConfig
from slb_autotune.search.samplers import make_sampler
from slb_autotune.training.seeds import derive_seed


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    monkeypatch.setattr("os.fsync", lambda file: None)


def config(name: str) -> SamplerConfig:
    return SamplerConfig(name=name, startup_trials=4, population=4)


def draw(trial: optuna.Trial) -> dict[str, Any]:
    """A log range, choices, and a range that exists only for one of them."""
    trial.suggest_float("x", 0.01, 100.0, log=True)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    if kind == "b":
        trial.suggest_float("y", 0.0, 1.0)
    trial.suggest_categorical("bits", [1, 2, 4])
    return trial.params


def values_of(params: dict[str, Any], objectives: int) -> list[float]:
    x = np.log10(params["x"])
    worse = params.get("y", 0.5)
    return [float(v) for v in ((x - 1) ** 2 + worse, params["bits"], x + worse)][:objectives]


def step(study: optuna.Study, sampler: SamplerConfig, objectives: int) -> dict[str, Any]:
    """One trial as the ledger does it: a sampler of its own, some refused, some stopped."""
    number = len(study.get_trials(deepcopy=False))
    study.sampler = make_sampler(sampler, 7, number)
    trial = study.ask()
    params = dict(draw(trial))
    if params["bits"] == 4 and params["kind"] == "b":
        trial.set_constraint("size", 0.5)
        study.tell(trial, state=TrialState.PRUNED)
    elif number % 5 == 4:
        trial.set_constraint("stopped early", 0.25)
        study.tell(trial, state=TrialState.PRUNED)
    else:
        trial.set_constraint("stopped early", 0.0)
        study.tell(trial, values_of(params, objectives))
    return params


@pytest.mark.parametrize("objectives", [1, 2, 3])
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_asks_and_is_told(name: str, objectives: int) -> None:
    study = optuna.create_study(directions=["minimize"] * objectives)
    with warnings.catch_warnings():
        warnings.simplefilter("error", category=optuna.exceptions.ExperimentalWarning)
        drawn = [step(study, config(name), objectives) for _ in range(6 if name == "gp" else 20)]
    for params in drawn:
        assert 0.01 <= params["x"] <= 100
        assert ("y" in params) == (params["kind"] == "b")
        assert params["bits"] in (1, 2, 4)
    assert len({params["x"] for params in drawn}) >= len(drawn) // 4
    assert not study.get_trials(states=(TrialState.RUNNING,))


@pytest.mark.parametrize("name", ["tpe", "gp", "nsga2"])
def test_a_model_finds_the_minimum_better_than_chance(name: str) -> None:
    trials = 60 if name != "gp" else 14

    def late_distance(sampler: str) -> float:
        study = optuna.create_study(direction="minimize")
        found = []
        for number in range(trials):
            study.sampler = make_sampler(config(sampler), 3, number)
            trial = study.ask()
            x, y = trial.suggest_float("x", -1, 1), trial.suggest_float("y", -1, 1)
            study.tell(trial, (x - 0.3) ** 2 + (y + 0.6) ** 2)
            found.append((x - 0.3) ** 2 + (y + 0.6) ** 2)
        return float(np.median(found[trials // 2 :]))

    assert late_distance(name) < 0.5 * late_distance("random")


def opened(path: Path, objectives: int) -> optuna.Study:
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(path))),
        study_name="s",
        directions=["minimize"] * objectives,
        load_if_exists=True,
    )


@pytest.mark.parametrize("objectives", [1, 2])
@pytest.mark.parametrize("name", ["tpe", "nsga2", "random"])
def test_killed_and_opened_again_before_every_trial_it_draws_the_same(
    name: str, objectives: int, tmp_path: Path
) -> None:
    whole = opened(tmp_path / "whole", objectives)
    expected = [step(whole, config(name), objectives) for _ in range(14)]
    found = [
        step(opened(tmp_path / "killed", objectives), config(name), objectives) for _ in range(14)
    ]
    assert found == expected


@pytest.mark.parametrize("name", ["tpe", "nsga2", "random"])
def test_a_trial_killed_while_it_was_drawn_is_drawn_the_same(name: str, tmp_path: Path) -> None:
    whole = opened(tmp_path / "whole", 2)
    for _ in range(12):
        step(whole, config(name), 2)
    killed = opened(tmp_path / "killed", 2)
    for number in range(12):
        killed.sampler = make_sampler(config(name), 7, number)
        trial = killed.ask()
        trial.suggest_float("x", 0.01, 100.0, log=True)
        # Here the process ends; another one takes the trial up.
        killed = opened(tmp_path / "killed", 2)
        killed.sampler = make_sampler(config(name), 7, number)
        again = optuna.Trial(killed, trial._trial_id)
        assert draw(again) == whole.trials[number].params
        told = whole.trials[number]
        for key, value in told.constraints.items():
            again.set_constraint(key, value)
        if told.values is None:
            killed.tell(again, state=told.state)
        else:
            killed.tell(again, told.values)


def test_seeds_depend_on_every_part() -> None:
    parts = [(0, 1), (1, 0), (0, 10), (0, "1x"), (0, 1, "x"), (0, "spared", 1)]
    seeds = [derive_seed(*p, bits=32) for p in parts]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert derive_seed(0, 1, bits=32) == derive_seed(0, 1, bits=32)


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "gp"])
def test_another_seed_or_number_draws_other_values(name: str) -> None:
    def first(seed: int, number: int) -> float:
        study = optuna.create_study(sampler=make_sampler(config(name), seed, number))
        return study.ask().suggest_float("x", 0, 1)

    assert len({first(0, 0), first(1, 0), first(0, 1)}) == 3
    assert first(0, 0) == first(0, 0)
