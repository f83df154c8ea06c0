"""The rules that every part of a configuration shares: frozen, strict, explained errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from slb_autotune.errors import ConfigError, nearest

BIT_WIDTHS = (1, 2, 3, 4, 8, 32)
BIT_FIELDS = ("weight_bits", "activation_bits")

SHORT_NAMES = {
    "T_s": "temperature.T_s",
    "T_e": "temperature.T_e",
    "schedule": "temperature.schedule",
    "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "width": "network.width",
}


class Section(BaseModel):
    """The rules of every part of a configuration: frozen, strict, no unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            known = [*cls.model_fields, *(SHORT_NAMES if cls.__name__ == "TrialConfig" else ())]
            for key in data:
                if key in cls.model_fields:
                    continue
                if key in known:
                    hint = (
                        f"it is short for {SHORT_NAMES[key]}; TrialConfig.from_mapping takes it."
                    )
                    raise ConfigError(f"unknown key {key!r}", hint)
                raise ConfigError(f"unknown key {key!r}", nearest(str(key), known))
        return data


def as_tuple(value: Any) -> Any:
    """Lists of YAML and JSON are tuples in a frozen configuration."""
    return tuple(value) if isinstance(value, list) else value


def off_is_a_word(value: Any) -> Any:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


class FrozenMap(dict[str, Any]):
    """A mapping inside a frozen configuration: it cannot be changed either."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("a configuration is frozen; make a changed copy with updated()")

    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = __ior__ = _refuse

    def __reduce__(self) -> tuple[type[FrozenMap], tuple[dict[str, Any]]]:
        return FrozenMap, (dict(self),)

    def __deepcopy__(self, memo: object) -> FrozenMap:
        return self


def freeze(value: Any) -> Any:
    """A mapping as a `FrozenMap`; anything else as it is."""
    return FrozenMap(value) if isinstance(value, dict) else value


def by_name(value: Any) -> Any:
    """A section given by its name alone: `network: resnet20`."""
    return {"name": value} if isinstance(value, str) else value


Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Bits = Annotated[int | dict[str, int], AfterValidator(freeze)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]


# The alternatives of a union, which pydantic adds to the location of an error.
_UNION_TAGS = frozenset({"int", "float", "str", "bool", "dict[str,int]"})


def explain(source: str, error: ValidationError) -> ConfigError:
    """One sentence of what pydantic found: where, which rule, which value."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    where = ".".join(str(part) for part in first["loc"] if str(part) not in _UNION_TAGS)
    prefix = f"{source}: {where}: " if where else f"{source}: "
    if isinstance(cause, ConfigError):
        return ConfigError(prefix + cause.message, cause.hint)
    got = "" if cause is not None else f"; got {first.get('input')!r}"
    message = first["msg"].removeprefix("Value error, ") + got
    return ConfigError(prefix + message, "`slb-autotune list fields` shows every field.")


def nest(values: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Turn dotted and short names into nested mappings: {"lr": 1} -> {"optimizer": {"lr": 1}}.

    `weight_bits.layer1.0.conv1` (a layer's name has dots of its own) adds to the bits given
    beside it, or else to those of `base`.
    """
    result: dict[str, Any] = {}
    single: list[tuple[str, str, Any]] = []
    seen: set[str] = set()
    for name, value in values.items():
        if not isinstance(name, str):
            raise ConfigError(f"a field's name must be text; got {name!r}")
        name = SHORT_NAMES.get(name, name)
        if name in ("network", "data") and isinstance(value, str):
            name = f"{name}.name"
        field, dot, rest = name.partition(".")
        if name in seen or (
            field != name
            and isinstance(values.get(field), Mapping)
            and (rest in values[field] and field not in BIT_FIELDS)
        ):
            raise ConfigError(f"{name} is given twice", "give it once.")
        seen.add(name)
        if field in BIT_FIELDS and dot:
            single.append((field, rest, value))
            continue
        for part in reversed(name.split(".")):
            value = {part: value}
        result = merge(result, value)
    for field, layer, bits in single:
        start = result.get(field, (base or {}).get(field, {}))
        result[field] = {**(start if isinstance(start, Mapping) else {"*": start}), layer: bits}
    return result


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `change` laid over it; mappings are merged, everything else is replaced."""
    result = dict(base)
    for name, value in change.items():
        old = result.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[name] = merge(old, value) if both else value  # type: ignore[arg-type]
    return result
