"""Options that commands share, and how their values are read: configurations, runs, studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slb_autotune.errors import ConfigError, InputError, nearest

if TYPE_CHECKING:
    from slb_autotune.config.study import StudyConfig
    from slb_autotune.config.trial import TrialConfig

DEFAULT_RUNS = Path("slb-runs")  # as in a study file, which takes pydantic to read
STUDY_KEYS = frozenset({"space", "points"})  # what a study's file has and a trial's has not
STUDY_SECTIONS = ("resources", "storage", "budget", "early_stopping", "sampler")  # for --set

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunsFolder = Annotated[
    Path, typer.Option("--runs", help="The folder that holds everything of this machine.")
]
RunsOverride = Annotated[
    Path | None, typer.Option("--runs", help="The run folder; by default the study file's own.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="A field of the fixed trial, or resources.gpus and the like.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="FIELD=VALUES",
        help="Of a list of points those with these values: method=slb,lsq. May be repeated.",
    ),
]
Trials = Annotated[int | None, typer.Option(help="Trials, in all.")]
Seconds = Annotated[float | None, typer.Option(help="Wall-clock seconds, in all.")]


def load_config(source: str, runs: Path = DEFAULT_RUNS) -> TrialConfig:
    """The trial that an argument names: a recipe, STUDY:NUMBER, or a YAML file."""
    from slb_autotune.config.files import parse_yaml, read_text
    from slb_autotune.config.recipes import RECIPES, recipe
    from slb_autotune.config.trial import TrialConfig

    if source in RECIPES:
        return recipe(source)
    trial = parse_trial(source)
    if trial is not None:
        from slb_autotune.analysis.result import current_result

        name, number = trial
        return current_result(runs, name).config_of(number)
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


def parse_trial(source: str) -> tuple[str, int] | None:
    """STUDY:NUMBER as its two parts; None where it is something else."""
    name, colon, number = source.partition(":")
    return (name, int(number)) if colon and number.isdigit() else None


def find_run(run: str, runs: Path) -> Path:
    """A run's folder, by its path or by its name; STUDY:NUMBER is a trial's full run."""
    named = runs / "trials" / run
    trial = parse_trial(run)
    if trial is not None:
        from slb_autotune.search.records import study_folder, trial_folder

        name, number = trial
        named = trial_folder(study_folder(runs, name), number) / "full"
    folder = Path(run) if Path(run).exists() or not named.exists() else named
    if not folder.is_dir():
        names = [path.name for path in (runs / "trials").glob("*")]
        hint = nearest(run, names) if names else f"none is in {runs}; --runs names another folder."
        raise InputError(f"there is no run {run!r}", hint)
    return folder


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
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


def changed_study(
    study: StudyConfig,
    *,
    name: str | None = None,
    settings: Sequence[str] = (),
    only: Sequence[str] = (),
    trials: int | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """A study with the changes that options ask for, as a mapping that is yet to be checked.

    A setting is a field of the fixed trial, or of a section of the study such as `resources`.
    """
    trial = dict(study.trial)
    sections: dict[str, dict[str, Any]] = {}
    for setting, value in parse_settings(settings).items():
        section, dot, field = setting.partition(".")
        if dot and section in STUDY_SECTIONS:
            sections.setdefault(section, {})[field] = value
        else:
            trial[setting] = value
    for field, limit in (("trials", trials), ("seconds", seconds)):
        if limit is not None:
            sections.setdefault("budget", {})[field] = limit
    changes: dict[str, Any] = {
        section: {**getattr(study, section).model_dump(), **fields}
        for section, fields in sections.items()
    }
    if name is not None:
        changes["name"] = name
    if only:
        changes["points"] = chosen_points(study, only)
    return {**study.to_mapping(), "trial": trial, **changes}


def chosen_points(study: StudyConfig, only: Sequence[str]) -> list[dict[str, Any]]:
    """The points of a study that have, in each named field, one of the named values."""
    from slb_autotune.config.section import SHORT_NAMES

    if not study.points:
        raise InputError("--only chooses among points, and this study has none", "leave it out.")
    base = study.base()
    points = [(dict(point), base.updated(point).flat()) for point in study.points]
    for choice in only:
        field, equals, values = choice.partition("=")
        name = SHORT_NAMES.get(field, field)
        if not equals or name not in points[0][1]:
            known = [*points[0][1], *SHORT_NAMES]
            raise InputError(f"--only takes FIELD=VALUES; got {choice!r}", nearest(field, known))
        left = [pair for pair in points if str(pair[1].get(name)) in values.split(",")]
        if not left:
            found = ", ".join(dict.fromkeys(str(flat.get(name)) for _, flat in points))
            raise InputError(f"--only {choice}: no point is left", f"{field} can be {found}.")
        points = left
    return [point for point, _ in points]
