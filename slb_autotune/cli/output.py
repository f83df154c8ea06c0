"""What all commands share: reading a configuration from words, and printing results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slb_autotune.errors import ConfigError, InputError, nearest

if TYPE_CHECKING:
    import pandas as pd

    from slb_autotune.config.trial import TrialConfig

DEFAULT_RUNS = Path("slb-runs")
STUDY_KEYS = frozenset({"space", "points"})  # what a study's file has and a trial's has not
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunsFolder = Annotated[
    Path, typer.Option("--runs", help="The folder that holds everything of this machine.")
]


def load_config(source: str) -> TrialConfig:
    """The trial that a word names: a recipe, STUDY:NUMBER, or a YAML file."""
    from slb_autotune.config.files import parse_yaml, read_text
    from slb_autotune.config.recipes import RECIPES, recipe
    from slb_autotune.config.trial import TrialConfig

    if source in RECIPES:
        return recipe(source)
    name, colon, number = source.partition(":")
    if colon and number.isdigit():
        return _trial_of_study(name, int(number))
    path = Path(source)
    if path.suffix in (".yaml", ".yml") or path.exists():
        values = parse_yaml(read_text(path), source)
        if STUDY_KEYS & values.keys():
            raise ConfigError(
                f"{source} is a study, which has many trials",
                f"run it: slb-autotune {'search' if 'space' in values else 'confirm'} {source}",
            )
        return TrialConfig.from_mapping(values, source)
    raise ConfigError(f"{source!r} is neither a recipe nor a YAML file", nearest(source, RECIPES))


def _trial_of_study(name: str, number: int) -> TrialConfig:
    """STUDY:NUMBER is the configuration of a trial that a study ran."""
    from slb_autotune.search.storage import StudyFolder, read_ledger

    files = StudyFolder(DEFAULT_RUNS, name)
    records = read_ledger(files.config(), files).records
    if number not in records:
        known = ", ".join(map(str, sorted(records)[:20]))
        raise InputError(f"study {name!r} has no trial {number}", f"it has {known}.")
    return records[number].config


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """FIELD=VALUE pairs of the command line."""
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"--set takes FIELD=VALUE; got {pair!r}", "for example --set lr=0.05"
            )
        values[name.strip()] = parse_value(f"--set {name}", text)
    return values


def parse_value(source: str, text: str | None) -> Any:
    """A value as YAML reads it; None stays None."""
    if text is None:
        return None
    from slb_autotune.config.files import parse_yaml

    return parse_yaml(f"value: {text}", source)["value"]


def find_run(run: str, runs: Path) -> Path:
    """A run's folder, by its path or by its name; STUDY:NUMBER is a trial's full run."""
    study, colon, number = run.partition(":")
    if colon and number.isdigit():
        named = runs / "studies" / study / "trials" / f"{int(number):05d}" / "full"
    else:
        named = runs / "trials" / run
    folder = Path(run) if Path(run).exists() or not named.exists() else named
    if not folder.is_dir():
        names = [path.name for path in (runs / "trials").glob("*")]
        hint = nearest(run, names) if names else f"none is in {runs}; --runs names another folder."
        raise InputError(f"there is no run {run!r}", hint)
    return folder


def print_table(table: pd.DataFrame, as_json: bool) -> None:
    """A table for people or for programs."""
    if as_json:
        print_json(table_rows(table))
    else:
        typer.echo(table.to_string(index=False, na_rep="", float_format="{:.3f}".format))


def table_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table as JSON has it: an object a row."""
    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records"))
    return rows


def print_json(value: Any) -> None:
    """A result for programs."""
    typer.echo(json.dumps(_without_nan(value), indent=2))


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
