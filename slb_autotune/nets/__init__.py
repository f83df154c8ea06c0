"""Networks as plain float modules; `build_network` builds one by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from torch import nn

from slb_autotune.config.registry import NETWORKS
from slb_autotune.config.trial import NetworkConfig
from slb_autotune.errors import ConfigError, nearest
from slb_autotune.nets.torchvision_import import import_torchvision

__all__ = ["build_network"]


def build_network(
    config: NetworkConfig, in_channels: int, num_classes: int | None, image_size: int
) -> nn.Module:
    """The float network that `config` names, fitted to the data.

    `torchvision:NAME` and `module:function` are handled like our own; a function is given those
    of width, in_channels, num_classes and image_size that it accepts.
    """
    function = _find(config.name)
    from_data = {
        "in_channels": in_channels,
        "num_classes": num_classes,
        "image_size": image_size,
    }
    arguments = _arguments(function, config, from_data)
    try:
        network = function(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"network {config.name!r} cannot be built: {error}",
            "network.width and network.options must be keywords that its function takes.",
        ) from error
    except ValueError as error:
        raise ConfigError(f"network {config.name!r} cannot be built: {error}") from error
    if not isinstance(network, nn.Module):
        raise ConfigError(f"network {config.name!r} gave a {type(network).__name__}, not a Module")
    return network


def _arguments(
    function: Callable[..., Any], config: NetworkConfig, from_data: Mapping[str, int | None]
) -> dict[str, Any]:
    """The keywords for `function`; a function of any keywords gets the number of classes alone."""
    accepted = inspect.signature(function).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    fitted = {
        name: value
        for name, value in from_data.items()
        if value is not None and (name in accepted or (takes_any and name == "num_classes"))
    }
    chosen: dict[str, Any] = dict(config.options)
    if config.width is not None:
        chosen["width"] = config.width
    for name in chosen:
        if name in from_data:
            raise ConfigError(f"network.options: {name} comes from the data set", "leave it out.")
        if name not in accepted and not takes_any:
            known = nearest(name, accepted)
            hint = "give --set network.width=null." if name == "width" else known
            raise ConfigError(f"network {config.name!r} has no option {name!r}", hint)
    return {**fitted, **chosen}


def _find(name: str) -> Any:
    if ":" not in name:
        return NETWORKS[name].load()
    module_name, _, attribute = name.partition(":")
    if module_name == "torchvision":
        module = import_torchvision().models
    else:
        try:
            module = import_module(module_name)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(
                f"network {name!r}: module {module_name!r} cannot be imported: {error}",
                "start where the module is, or install it.",
            ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        known = [other for other in dir(module) if not other.startswith("_")]
        raise ConfigError(
            f"network {name!r}: no function {attribute!r}", nearest(attribute, known)
        )
    return function
