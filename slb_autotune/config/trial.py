"""What a trial is: frozen, strict, and the same in Python, JSON and YAML.

Every field has a dotted name (`temperature.T_e`, `optimizer.lr`); the names that people say most
have a short form too (`T_e`, `lr`): see `SHORT_NAMES`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from slb_autotune.config.files import YamlDumper, parse_yaml, read_text
from slb_autotune.config.methods import METHODS, activation_widths
from slb_autotune.config.registry import DATASETS, NETWORKS, SCHEDULES
from slb_autotune.config.section import (
    BIT_FIELDS,
    BIT_WIDTHS,
    Bits,
    Fraction,
    FrozenMap,
    Names,
    Section,
    Seed,
    as_tuple,
    by_name,
    explain,
    freeze,
    merge,
    nest,
    off_is_a_word,
)
from slb_autotune.errors import ConfigError


class NetworkConfig(Section):
    """Which network. Channels, classes and image size come from the data set."""

    name: str = Field(
        "resnet20",
        description="a registered network, `torchvision:NAME`, or `module:function` of your own",
    )
    width: int | None = Field(
        None, ge=1, description="channels of the first stage; none: as published"
    )
    options: Annotated[dict[str, bool | int | float | str], AfterValidator(freeze)] = Field(
        default_factory=FrozenMap,
        description="further keyword arguments of the network's function",
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return name if ":" in name else NETWORKS[name].name


class DataConfig(Section):
    """Which data, and how it is split. The validation part is cut from the training set."""

    name: str = Field("digits", description="a registered data set")
    root: str | None = Field(None, description="where the files are; embedded sets need none")
    download: bool = Field(False, description="let torchvision fetch the set where it can")
    val_fraction: float = Field(
        0.1, ge=0.0, lt=1.0, description="share of the training set kept for validation; 0: none"
    )
    split_seed: Seed = Field(0, description="seed of the validation split")
    train_images: int | None = Field(
        None, ge=1, description="use only so many images of the training part, drawn by split_seed"
    )
    augment: bool = Field(True, description="crops, flips and rotations, as the data set defines")
    image_size: int | None = Field(None, ge=8, description="imagenet: side of the crop; none: 224")
    workers: int = Field(0, ge=0, description="imagenet: DataLoader worker processes")
    scale: int = Field(2, ge=2, le=8, description="super-resolution: scale factor")
    patch: int = Field(41, ge=8, description="super-resolution: side of a training patch")
    patches: int = Field(
        1000, ge=1, description="super-resolution: random patches drawn in an epoch"
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return DATASETS[name].name


class TemperatureConfig(Section):
    """T = 1/tau over training. The paper's figure has T_s 0.01, T_e 10.

    The default T_e is 1000: in short runs T_e = 10 leaves most weights far from one-hot.
    """

    schedule: str = Field("exp", description=f"how T rises: {', '.join(SCHEDULES)}")
    T_s: float = Field(0.01, gt=0.0, le=1e9, description="T at the start")
    T_e: float = Field(1000.0, gt=0.0, le=1e9, description="T at the end")
    flat_until: Fraction = Field(0.0, description="T stays T_s before this share of training")
    flat_from: Fraction = Field(1.0, description="T stays T_e after this share of training")
    update: Literal["iteration", "epoch"] = Field("iteration", description="when T changes")

    @field_validator("schedule")
    @classmethod
    def _known(cls, schedule: str) -> str:
        return SCHEDULES[schedule].name

    @model_validator(mode="after")
    def _ordered(self) -> TemperatureConfig:
        if self.T_e < self.T_s:
            raise ValueError(f"T_e must be at least T_s; got T_s={self.T_s:g}, T_e={self.T_e:g}")
        if self.flat_until >= self.flat_from:
            raise ValueError(
                "flat_until must be below flat_from; "
                f"got {self.flat_until:g} and {self.flat_from:g}"
            )
        return self


class NormConfig(Section):
    """State batch normalisation (SBN)."""

    mode: Annotated[Literal["paper", "calibrate", "off"], BeforeValidator(off_is_a_word)] = Field(
        "calibrate",
        description="paper: both statistics in every step; calibrate: W_q's re-estimated after "
        "each epoch; off: W_c's used at inference (the paper's ablation)",
    )
    every: int = Field(1, ge=1, description="paper: update W_q's statistics every so many steps")
    batches: int = Field(10, ge=1, description="calibrate: batches to estimate from")
    eps: float = Field(1e-5, gt=0.0, description="added to the variance")
    momentum: float = Field(0.1, gt=0.0, le=1.0, description="of the running statistics")


class OptimizerConfig(Section):
    """How parameters move."""

    name: Literal["sgd", "adam"] = Field("sgd", description="sgd or adam")
    lr: float = Field(0.1, gt=0.0, description="learning rate, the peak where it changes")
    momentum: float = Field(0.9, ge=0.0, lt=1.0, description="sgd only")
    nesterov: bool = Field(False, description="sgd only")
    weight_decay: float = Field(1e-4, ge=0.0, description="of all parameters but A")
    decay_logits: bool = Field(
        False,
        description="whether weight decay touches A; no by default, since only T times A matters "
        "and a shrinking A is a hidden change of temperature",
    )
    clip: Literal["none", "norm", "value", "vdsr"] = Field(
        "none", description="gradient clipping; vdsr: each value to +-clip_limit/lr"
    )
    clip_limit: float = Field(0.4, gt=0.0, description="the limit of gradient clipping")

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> OptimizerConfig:
        if self.nesterov and (self.name != "sgd" or self.momentum == 0.0):
            raise ValueError("nesterov needs name: sgd and momentum above 0")
        return self


class LrScheduleConfig(Section):
    """The learning rate over training, as shares of it, so that it scales with the epochs."""

    name: Literal["constant", "milestones", "cosine", "one_cycle"] = Field(
        "one_cycle", description="constant, milestones, cosine or one_cycle"
    )
    milestones: Annotated[tuple[Fraction, ...], BeforeValidator(as_tuple)] = Field(
        (0.7, 0.88, 0.95), description="shares of training; the paper's 350, 440, 475 of 500"
    )
    gamma: float = Field(0.1, gt=0.0, le=1.0, description="factor at each milestone")
    warmup: float = Field(0.0, ge=0.0, lt=1.0, description="share of training with a linear rise")

    @model_validator(mode="after")
    def _one_cycle_has_its_own_rise(self) -> LrScheduleConfig:
        if self.name == "one_cycle" and self.warmup > 0:
            raise ValueError("one_cycle has a rise of its own; set warmup to 0")
        return self

    @field_validator("milestones")
    @classmethod
    def _rising(cls, milestones: tuple[float, ...]) -> tuple[float, ...]:
        if list(milestones) != sorted(set(milestones)):
            raise ValueError(f"milestones must rise; got {list(milestones)}")
        return milestones


class InitConfig(Section):
    """Where A starts: kaiming-normal for each slice, or around a float network's weights."""

    checkpoint: str | None = Field(None, description="a float network's state dict or our run")
    spread: float | None = Field(
        None, gt=0.0, description="standard deviation of A; none: kaiming, sqrt(2 / fan_in)"
    )


class TrialConfig(Section):
    """One training run, whole: two equal configurations give the same numbers."""

    network: Annotated[NetworkConfig, BeforeValidator(by_name)] = NetworkConfig()
    data: Annotated[DataConfig, BeforeValidator(by_name)] = DataConfig()
    method: str = Field("slb", description="how weights are quantised")
    weight_bits: Bits = Field(
        1,
        description="of all layers, or a map from names or patterns; what it leaves out is float",
    )
    activation_bits: Bits = Field(32, description="the same for activations")
    activation: str = Field(
        "method", description="the activation quantiser: dorefa, pact, ...; method: its own"
    )
    keep_float: Names | None = Field(
        None, description="layers that stay float; none: what the network itself asks for"
    )
    temperature: TemperatureConfig = TemperatureConfig()
    norm: NormConfig = NormConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    lr_schedule: LrScheduleConfig = LrScheduleConfig()
    init: InitConfig = InitConfig()
    label_smoothing: float = Field(0.0, ge=0.0, lt=1.0, description="of cross-entropy")
    epochs: int = Field(20, ge=1, description="passes over the training set")
    batch_size: int = Field(100, ge=1, description="examples in a step")
    seed: Seed = Field(0, description="of weights, order and augmentation")
    threads: int = Field(
        1, ge=1, le=1024, description="CPU threads; numbers are the same at equal threads"
    )
    device: str = Field("auto", description="auto, cpu, mps, cuda or cuda:N")
    amp: Annotated[Literal["off", "bf16", "fp16"], BeforeValidator(off_is_a_word)] = Field(
        "off", description="mixed precision"
    )
    channels_last: bool = Field(
        True,
        description="memory format of networks and images; faster than the plain one on a CPU",
    )

    @model_validator(mode="before")
    @classmethod
    def _float_has_32_bits(cls, data: Any) -> Any:
        return _float_defaults(data) if isinstance(data, Mapping) else data

    @field_validator("device")
    @classmethod
    def _device_word(cls, device: str) -> str:
        if re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", device) is None:
            raise ValueError(f"device must be auto, cpu, mps, cuda or cuda:N; got {device!r}")
        return device

    @field_validator("weight_bits", "activation_bits")
    @classmethod
    def _widths(cls, bits: int | dict[str, int]) -> int | dict[str, int]:
        for width in bits.values() if isinstance(bits, dict) else [bits]:
            if width not in BIT_WIDTHS:
                allowed = ", ".join(map(str, BIT_WIDTHS))
                raise ValueError(f"bits must be one of {allowed}; got {width}")
        return bits

    @model_validator(mode="after")
    def _parts_fit(self) -> TrialConfig:
        allowed = METHODS[self.method].details["weight_bits"]
        _check_widths("weight_bits", f"method {self.method!r}", self.weight_bits, allowed)
        if not self.quantises and set(_widths_of(self.activation_bits)) != {32}:
            raise ValueError(
                "activation_bits apply to quantised layers, and with these weight_bits "
                "no layer is quantised; set activation_bits to 32 or lower weight_bits"
            )
        widths = activation_widths(self.method, self.activation)
        owner = "method" if self.activation == "method" else "activation"
        chosen = f"{owner} {getattr(self, owner)!r}"
        _check_widths("activation_bits", chosen, self.activation_bits, widths)
        network = NETWORKS.get(self.network.name) if ":" not in self.network.name else None
        task = DATASETS[self.data.name].details["task"]
        if network is not None and network.details["task"] != task:
            raise ValueError(
                f"network {self.network.name!r} is for {network.details['task']} "
                f"but data set {self.data.name!r} is for {task}"
            )
        return self

    @property
    def quantises(self) -> bool:
        """Whether any layer may become a low-bit one."""
        return self.method != "float" and any(w != 32 for w in _widths_of(self.weight_bits))

    @property
    def uses_temperature(self) -> bool:
        """Whether `temperature` changes anything."""
        return self.quantises and bool(METHODS[self.method].details["temperature"])

    @property
    def super_resolution(self) -> bool:
        """Whether the task is super-resolution, measured by PSNR; otherwise classification."""
        return bool(DATASETS[self.data.name].details["task"] == "super_resolution")

    @property
    def digest(self) -> str:
        """A short name of exactly this configuration."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:10]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str = "configuration") -> TrialConfig:
        """Check `values`, nested or dotted, and freeze them."""
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{source} must be a mapping of fields; got a {type(values).__name__}"
            )
        try:
            text = json.dumps(nest(values))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{source}: {error}", "use numbers, texts, lists and maps."
            ) from None
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise explain(source, error) from None

    @classmethod
    def from_yaml(cls, text: str, source: str = "configuration") -> TrialConfig:
        return cls.from_mapping(parse_yaml(text, source), source)

    @classmethod
    def from_file(cls, path: Path) -> TrialConfig:
        return cls.from_yaml(read_text(path), str(path))

    def to_mapping(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return self.model_dump(mode="json")

    def flat(self) -> dict[str, Any]:
        """Every field by its dotted name."""
        values: dict[str, Any] = {}
        for name, value in self.to_mapping().items():
            if name in _SECTIONS:
                values |= {f"{name}.{key}": inner for key, inner in value.items()}
            else:
                values[name] = value
        return values

    def to_json(self) -> str:
        return json.dumps(self.to_mapping(), sort_keys=True)

    def to_yaml(self) -> str:
        return yaml.dump(self.to_mapping(), Dumper=YamlDumper, sort_keys=False)

    def replace(self, **values: Any) -> TrialConfig:
        """A copy with some fields changed; nested ones as `optimizer={"lr": 0.1}`."""
        return self.updated(values)

    def updated(self, values: Mapping[str, Any]) -> TrialConfig:
        """A copy with some fields changed, by nested, dotted or short names.

        A map of bits replaces the old bits; `weight_bits.LAYER` changes that layer alone.
        """
        base = self.to_mapping()
        change = _float_defaults(nest(values, base))
        for field in BIT_FIELDS:
            if field in change:
                base.pop(field)
        return TrialConfig.from_mapping(merge(base, change))


def _float_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Choosing the method `float` chooses 32 bits, unless bits are given too."""
    if values.get("method") != "float":
        return dict(values)
    return {"weight_bits": 32, "activation_bits": 32, **values}


def _widths_of(bits: int | dict[str, int]) -> list[int]:
    return list(bits.values()) if isinstance(bits, dict) else [bits]


def _check_widths(
    field: str, owner: str, bits: int | dict[str, int], allowed: tuple[int, ...]
) -> None:
    for width in _widths_of(bits):
        if width != 32 and width not in allowed:
            choices = ", ".join(map(str, sorted({*allowed, 32})))
            raise ValueError(f"{field} must be one of {choices} with {owner}; got {width}")


_SECTIONS = frozenset(
    name
    for name, field in TrialConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
)
