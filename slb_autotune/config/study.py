"""What a study is: one YAML file that says what is fixed, what is searched, and for what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from slb_autotune.config.files import YamlDumper, parse_yaml, read_text
from slb_autotune.config.metrics import COST, METRICS, Direction, Objectives, quality_metric
from slb_autotune.config.recipes import recipe
from slb_autotune.config.registry import SAMPLERS
from slb_autotune.config.section import (
    BIT_FIELDS,
    BIT_WIDTHS,
    SHORT_NAMES,
    Section,
    Seed,
    as_tuple,
    explain,
    off_is_a_word,
)
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import ConfigError, nearest

NO_MLFLOW = "off"

Scalar = bool | int | float | str
Range = Annotated[tuple[float, float], BeforeValidator(as_tuple)]
Choices = Annotated[tuple[Scalar, ...], BeforeValidator(as_tuple)]


class ParameterConfig(Section):
    """One searched field: choices, or a uniform, log-uniform or integer range."""

    choices: Choices | None = None
    uniform: Range | None = None
    log: Range | None = None
    integer: Annotated[tuple[int, int], BeforeValidator(as_tuple)] | None = None
    when: dict[str, Scalar | Choices] = Field(
        default_factory=dict, description="exists only where these fields have these values"
    )
    per: Literal["network", "stage", "layer"] = Field(
        "network", description="bits only: one number for all, for each stage, or for each layer"
    )

    @model_validator(mode="before")
    @classmethod
    def _list_means_choices(cls, data: Any) -> Any:
        return {"choices": data} if isinstance(data, list) else data

    @model_validator(mode="after")
    def _exactly_one(self) -> ParameterConfig:
        kinds = [self.choices, self.uniform, self.log, self.integer]
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("give exactly one of choices, uniform, log and integer")
        if self.choices is not None and len(set(self.choices)) != len(self.choices):
            raise ValueError("choices must differ from each other")
        if self.choices == ():
            raise ValueError("choices must not be empty")
        for ends in (self.uniform, self.log, self.integer):
            if ends is not None and not ends[0] < ends[1]:
                raise ValueError(f"a range must rise; got {list(ends)}")
        if self.log is not None and self.log[0] <= 0:
            raise ValueError(f"a log range must be above 0; got {list(self.log)}")
        return self


class SamplerConfig(Section):
    """How the next trial is chosen."""

    name: str = Field("tpe", description="tpe, nsga2, nsga3, gp, random or grid")
    startup_trials: int = Field(10, ge=1, description="random trials before a model is used")
    population: int = Field(20, ge=2, description="nsga2 and nsga3: members of a generation")
    grid_points: int = Field(3, ge=2, description="grid: values taken from a continuous range")

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return SAMPLERS[name].name


class BudgetConfig(Section):
    """When a study ends; whichever comes first."""

    trials: int | None = Field(40, ge=1, description="trials, infeasible draws not counted")
    seconds: float | None = Field(None, gt=0, description="wall-clock time, over all sessions")
    epochs: int | None = Field(None, ge=1, description="epochs of all trials and rungs together")
    patience: int | None = Field(
        None, ge=2, description="stop after so many trials in which hypervolume did not grow"
    )
    growth: float = Field(0.001, ge=0, description="share by which hypervolume must grow")


class ResourcesConfig(Section):
    """What a trial may use. Threads are a field of the trial."""

    concurrent: int | None = Field(None, ge=1, description="trials at once; none: what fits")
    cpus: float = Field(1.0, gt=0, description="of a trial")
    gpus: float | Literal["auto"] = Field(
        0.0, description="of a trial; auto: the share its memory needs"
    )
    retries: int = Field(2, ge=0, description="of a trial whose worker process died")


class StoppingConfig(Section):
    """Early stopping by asynchronous successive halving."""

    rungs: Annotated[
        tuple[Annotated[float, Field(gt=0, lt=1)], ...], BeforeValidator(as_tuple)
    ] = Field((), description="shares of the full epochs at which trials are compared; none: off")
    keep: float = Field(0.5, gt=0, lt=1, description="share of trials that a rung lets pass")
    budget: Literal["compressed", "prefix"] = Field(
        "compressed",
        description="compressed: the whole schedule in fewer epochs; prefix: its first epochs",
    )
    spared: float = Field(0.1, ge=0, le=1, description="share of trials that is never stopped")
    minimum: int = Field(4, ge=2, description="results a rung needs before it stops anything")

    @field_validator("rungs")
    @classmethod
    def _rising(cls, rungs: tuple[float, ...]) -> tuple[float, ...]:
        if list(rungs) != sorted(set(rungs)):
            raise ValueError(f"rungs must rise; got {list(rungs)}")
        return rungs


class WarmStartConfig(Section):
    """Trials that come first."""

    uniform: bool = Field(True, description="all layers at 1, at 2, at 4 bits, where searched")
    paper: bool = Field(True, description="the paper's T_s 0.01, T_e 10, exp, where searched")
    sensitivity: int = Field(0, ge=0, description="allocations from a sensitivity analysis")
    study: str | None = Field(None, description="an earlier study whose front starts this one")


class StorageConfig(Section):
    """Where things live; on a cluster each is a URI."""

    folder: str = Field("slb-runs", description="the run folder, shared by all nodes")
    optuna: str | None = Field(None, description="a database URL; none: a journal file")
    ray: str | None = Field(None, description="a running cluster's address; none: this machine")
    mlflow: Annotated[str | None, BeforeValidator(off_is_a_word)] = Field(
        None,
        description="MLflow's store; none: MLFLOW_TRACKING_URI, or SQLite in the run folder; "
        "`off`: no record",
    )


@dataclass(frozen=True)
class Constraint:
    """metric <= limit, or metric >= limit."""

    metric: str
    upper: bool
    limit: float

    @property
    def known_before(self) -> bool:
        """Whether the bits alone decide it."""
        return METRICS[self.metric].known_before_training

    def violation(self, value: float) -> float:
        """0 or less where it holds; otherwise by which share it does not."""
        excess = value - self.limit if self.upper else self.limit - value
        return excess / max(abs(self.limit), 1e-12)

    def __str__(self) -> str:
        return f"{self.metric} {'<=' if self.upper else '>='} {self.limit:.15g}"


_UNITS = {"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "k": 1e3}
_UNITS |= {"M": 1e6, "G": 1e9, "GiB": 2**30}
_CONSTRAINT = re.compile(r"^\s*(\w+)\s*(<=|>=)\s*([-+.\deE]+)\s*([A-Za-z]*)\s*$")


def parse_amount(text: str) -> float:
    """64 kB -> 64000."""
    match = re.match(r"^\s*([-+.\deE]+)\s*([A-Za-z]*)\s*$", text)
    if match is None or match[2] not in _UNITS:
        raise ConfigError(f"{text!r} is not an amount", "write 65536, 64 kB or 64 KiB.")
    try:
        return float(match[1]) * _UNITS[match[2]]
    except ValueError:
        raise ConfigError(f"{text!r} is not an amount", "write 65536, 64 kB or 64 KiB.") from None


def parse_constraint(text: str) -> Constraint:
    """`size_bytes <= 64 kB`."""
    match = _CONSTRAINT.match(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a constraint", "write `size_bytes <= 64 kB`.")
    metric, sign, number, unit = match.groups()
    _check_metric(metric)
    return Constraint(metric, sign == "<=", parse_amount(f"{number} {unit}"))


def _check_metric(metric: str, *, test: bool = False) -> None:
    """A search never sees the test set; only a confirmation does."""
    known = [m.name for m in METRICS.values() if m.searchable or (test and m.stage == "test")]
    if metric not in known and metric in METRICS:
        raise ConfigError(
            f"{metric} cannot be searched for",
            "a search never sees the test set; `slb-autotune confirm` measures it."
            if METRICS[metric].stage == "test"
            else nearest(metric, known),
        )
    if metric not in known:
        raise ConfigError(f"unknown metric {metric!r}", nearest(metric, known))


def _check_task(metric: str, base: TrialConfig) -> None:
    """Refuse a metric that the task of the data set does not have."""
    task = "super_resolution" if base.super_resolution else "classification"
    if METRICS[metric].task not in (None, task):
        fitting = [m.name for m in METRICS.values() if m.searchable and m.task == task]
        raise ConfigError(
            f"{metric} is not measured on data set {base.data.name!r}, which is for "
            f"{task.replace('_', '-')}",
            f"use {' or '.join(fitting)}.",
        )


class StudyConfig(Section):
    """A study, whole."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    recipe: str | None = Field(None, description="the recipe that the fixed part starts from")
    trial: dict[str, Any] = Field(default_factory=dict, description="the fixed part of a trial")
    space: dict[str, ParameterConfig] = Field(default_factory=dict, description="what is searched")
    points: tuple[dict[str, Any], ...] = Field(
        (), description="an explicit list of trials instead of a sampler"
    )
    objectives: dict[str, Direction] = Field(
        default_factory=dict, description="one to four metrics; none: accuracy or PSNR, and size"
    )
    constraints: tuple[str, ...] = ()
    sampler: SamplerConfig = SamplerConfig()
    budget: BudgetConfig = BudgetConfig()
    resources: ResourcesConfig = ResourcesConfig()
    early_stopping: StoppingConfig = StoppingConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    storage: StorageConfig = StorageConfig()
    seed: Seed = 0
    confirms: str | None = Field(None, description="the study whose front this one confirms")

    @field_validator("objectives")
    @classmethod
    def _known_metrics(cls, objectives: dict[str, Direction]) -> dict[str, Direction]:
        if len(objectives) > 4:
            raise ValueError(f"a study has one to four objectives; got {len(objectives)}")
        return objectives

    @model_validator(mode="after")
    def _consistent(self) -> StudyConfig:
        base = self.base()
        for metric in self.objectives:
            try:
                _check_metric(metric, test=self.confirms is not None)
            except ConfigError as error:
                raise ConfigError(f"objectives: {error.message}", error.hint) from None
        for metric in (*self.objectives, *(c.metric for c in self.parsed_constraints)):
            _check_task(metric, base)
        if not self.space and not self.points:
            raise ValueError("a study needs a space or points: there is nothing to search")
        if self.space and self.points:
            raise ValueError("give a space or points, not both")
        for name, parameter in self.space.items():
            self._check_parameter(name, parameter, base)
        for point in self.points:
            base.updated(point)
        return self

    def _check_parameter(self, name: str, parameter: ParameterConfig, base: TrialConfig) -> None:
        long = SHORT_NAMES.get(name, name)
        if long != name and long in self.space:
            raise ValueError(f"space: {long} is given twice, as {name} too")
        for other in parameter.when:
            known = [*self.space, *SHORT_NAMES, *base.flat()]
            if other not in known:
                raise ConfigError(
                    f"space.{name}.when: unknown field {other!r}", nearest(other, known)
                )
            self._check_condition(name, other, base)
        if name in BIT_FIELDS:
            for bits in parameter.choices or ("a range",):
                if bits not in BIT_WIDTHS:
                    raise ValueError(f"space.{name}: bits are choices of {BIT_WIDTHS}; got {bits}")
            return
        if parameter.per != "network":
            raise ValueError(f"space.{name}: only weight_bits and activation_bits have a `per`")
        if parameter.choices is not None:
            tries = list(parameter.choices)
        else:
            ends = parameter.uniform or parameter.log or parameter.integer
            assert ends is not None
            tries = list(ends)
        for value in tries:
            _check_value(base, long, value, self.space)

    def _check_condition(self, name: str, field: str, base: TrialConfig) -> None:
        """A condition must be able to hold: on values that the other field can have."""
        long = SHORT_NAMES.get(field, field)
        other = next((p for n, p in self.space.items() if SHORT_NAMES.get(n, n) == long), None)
        asked = self.space[name].when[field]
        for value in asked if isinstance(asked, tuple) else (asked,):
            if other is None:
                try:
                    base.updated({long: value})
                except ConfigError as error:
                    never = f"space.{name}.when: {field} is never {value!r}"
                    raise ConfigError(never, error.hint) from None
            elif other.choices is not None and value not in other.choices:
                raise ConfigError(
                    f"space.{name}.when: {field} is never {value!r}",
                    nearest(str(value), map(str, other.choices)),
                )

    @property
    def parsed_constraints(self) -> list[Constraint]:
        """The constraints, parsed."""
        return [parse_constraint(text) for text in self.constraints]

    def base(self) -> TrialConfig:
        """The fixed part of every trial."""
        start = TrialConfig() if self.recipe is None else recipe(self.recipe)
        return start.updated(self.trial)

    def goals(self) -> Objectives:
        """The objectives; by default accuracy or PSNR against size."""
        if self.objectives:
            return Objectives.of(self.objectives)
        names = (quality_metric(super_resolution=self.base().super_resolution), COST)
        return Objectives.of({name: METRICS[name].direction for name in names})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str = "study") -> StudyConfig:
        """Check `values` and freeze them."""
        try:
            return cls.model_validate(_tuples(values))
        except ValidationError as error:
            raise explain(source, error) from None

    @classmethod
    def from_file(cls, path: Path) -> StudyConfig:
        """The study in a YAML file; its name is the file's unless it says another."""
        values = parse_yaml(read_text(path), str(path))
        return cls.from_mapping({"name": path.stem, **values}, str(path))

    def to_mapping(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def to_yaml(self) -> str:
        """The study as YAML."""
        return yaml.dump(self.to_mapping(), Dumper=YamlDumper, sort_keys=False)


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(values)
    for name in ("points", "constraints"):
        if isinstance(result.get(name), list):
            result[name] = tuple(result[name])
    return result


def _check_value(
    base: TrialConfig, name: str, value: Scalar, space: Mapping[str, ParameterConfig]
) -> None:
    """Try a value in the fixed part; what another searched field may put right passes."""
    try:
        base.updated({name: value})
    except ConfigError as error:
        searched = {SHORT_NAMES.get(field, field) for field in space}
        rule_of_two = "T_e must be at least T_s" in error.message
        if not (rule_of_two and searched & {"temperature.T_s", "temperature.T_e"}):
            raise ConfigError(f"space.{name}: {error.message}", error.hint) from None
