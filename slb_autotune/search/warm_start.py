"""Warm starts: the trials that a study begins with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution

from slb_autotune.search.allocations import best_allocations
from slb_autotune.search.ledger import Ledger
from slb_autotune.search.sensitivity import measure_sensitivity
from slb_autotune.search.space import contains, smallest
from slb_autotune.search.storage import read_study

UNIFORM_BITS = (1, 2, 4)
PAPER = {"temperature.T_s": 0.01, "temperature.T_e": 10.0, "temperature.schedule": "exp"}


def enqueue_first_trials(ledger: Ledger) -> None:
    """Put the initial configurations, or a grid, at the head of the queue, once per study."""
    if ledger.study.user_attrs.get("warm"):
        return
    config = ledger.config
    if config.sampler.name == "grid" and not config.points:
        ledger.enqueue(ledger.space.grid(), "grid")
    elif not config.points:
        for source, values in initial_configurations(ledger):
            ledger.enqueue([values], source)
    ledger.study.set_user_attr("warm", True)  # only now: a killed start is done again


def initial_configurations(ledger: Ledger) -> Iterator[tuple[str, dict[str, Any]]]:
    """(source, parameters) of each initial configuration.

    The uniform allocations come first, then the paper's schedule at the fewest bits, then what a
    sensitivity analysis found, then the trials of an earlier study. What they leave open is as in
    the study's fixed part where the space holds that, and drawn where it does not.
    """
    defaults = _defaults(ledger)
    for source, values in _sources(ledger):
        yield source, {**defaults, **values}


def _defaults(ledger: Ledger) -> dict[str, Any]:
    """The fixed part's own values of what is searched."""
    base = ledger.feasibility.base.flat()
    return {
        dimension.name: base[dimension.name]
        for dimension in ledger.space.dimensions
        if dimension.name in base and contains(dimension.distribution, base[dimension.name])
    }


def _sources(ledger: Ledger) -> Iterator[tuple[str, dict[str, Any]]]:
    warm = ledger.config.warm_start
    if warm.uniform:
        for bits in UNIFORM_BITS:
            values = _fixed(ledger, bits)
            if values and _allowed(ledger, values):
                yield f"uniform {bits} bit", values
    if warm.paper:
        values = {name: value for name, value in PAPER.items() if _holds(ledger, name, value)}
        fixed = {**ledger.feasibility.base.flat(), **values}
        whole = all(fixed[name] == value for name, value in PAPER.items())
        if values and whole and _allowed(ledger, {**values, **_fewest(ledger)}):
            yield "paper", {**values, **_fewest(ledger)}
    if warm.sensitivity:
        yield from _from_sensitivity(ledger)
    if warm.study is not None:
        yield from _from_study(ledger, warm.study)


def _fixed(ledger: Ledger, bits: int) -> dict[str, Any]:
    """The same bits for all weights, where weights are searched and have that choice."""
    return {
        dimension.name: bits
        for dimension in ledger.space.dimensions
        if dimension.name.startswith("weight_bits/")
        and isinstance(dimension.distribution, CategoricalDistribution)
        and bits in dimension.distribution.choices
    }


def _fewest(ledger: Ledger) -> dict[str, Any]:
    """The fewest bits of every weight, where weights are searched."""
    return {
        dimension.name: smallest(dimension.distribution)
        for dimension in ledger.space.dimensions
        if dimension.name.startswith("weight_bits/")
    }


def _allowed(ledger: Ledger, values: dict[str, Any]) -> bool:
    return not ledger.feasibility.check(ledger.space.config(values)).reason


def _holds(ledger: Ledger, name: str, value: Any) -> bool:
    found = [d for d in ledger.space.dimensions if d.name == name]
    return bool(found) and contains(found[0].distribution, value)


def _from_sensitivity(ledger: Ledger) -> Iterator[tuple[str, dict[str, Any]]]:
    dimensions = [d for d in ledger.space.dimensions if d.name.startswith("weight_bits/")]
    if not dimensions:
        return
    choices = sorted({b for d in dimensions for b in d.distribution.choices})  # type: ignore[attr-defined]
    base = ledger.feasibility.base
    table = measure_sensitivity(base, choices, folder=ledger.folder / "sensitivity")
    for allocation in best_allocations(table, ledger.config.warm_start.sensitivity):
        values = {f"weight_bits/{layer}": bits for layer, bits in allocation.items()}
        names = {d.name for d in dimensions}
        if names == values.keys() and _allowed(ledger, values):
            yield "sensitivity", values


def _from_study(ledger: Ledger, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The best trials of an earlier study, mapped by parameter name."""
    earlier = read_study(Path(ledger.config.storage.folder), name)
    names = {dimension.name: dimension.distribution for dimension in ledger.space.dimensions}
    for record in earlier.front():
        values = {
            key: value
            for key, value in record.params.items()
            if key in names and contains(names[key], value)
        }
        if values:
            yield f"study {name}", values
