"""The network of a trial: built, quantised, moved to its device, loaded from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slb_autotune import data
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import CheckpointError
from slb_autotune.nets import build_network
from slb_autotune.quant.convert import quantize
from slb_autotune.quant.layers import low_bit_layers
from slb_autotune.training.run_folder import load_tensors


def make_network(config: TrialConfig, info: data.DataInfo, device: torch.device) -> nn.Module:
    """The trial's quantised network on its device, initialised from the global random state."""
    network = build_network(config.network, info.in_channels, info.num_classes, info.image_size)
    if config.init.checkpoint is not None:
        state = load_tensors(Path(config.init.checkpoint))
        load_into(network, float_state(state))
    example = torch.zeros(1, *info.input_shape)
    network = quantize(
        network,
        config.weight_bits,
        config.activation_bits,
        config.method,
        example,
        activation=config.activation,
        norm=config.norm,
        keep_float=config.keep_float,
        keep_weights=config.init.checkpoint is not None,
        spread=config.init.spread,
    ).to(device)
    use_memory_format(network, config)
    return network


def use_memory_format(network: nn.Module, config: TrialConfig) -> None:
    """Put the parameters into the memory format of the trial, in place.

    Parameters alone: `Module.to(memory_format=...)` would convert buffers as well.
    """
    if config.channels_last:
        for parameter in network.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def float_state(state: dict[str, Any]) -> dict[str, Any]:
    """The state dict inside a checkpoint; a state BN's continuous statistics become a BN's own."""
    state = state.get("network", state.get("state_dict", state))
    if not any(name.endswith("running_mean_c") for name in state):
        return state
    renamed: dict[str, Any] = {}
    for name, value in state.items():
        if name.endswith("running_mean_c"):
            renamed[f"{name.removesuffix('running_mean_c')}num_batches_tracked"] = torch.tensor(0)
        if not name.endswith(("running_mean_q", "running_var_q")):
            renamed[name.removesuffix("_c") if "running_" in name else name] = value
    return renamed


def load_into(network: nn.Module, state: dict[str, Any]) -> None:
    """Load a state dict; the error names the first tensor that does not fit."""
    try:
        network.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        lines = str(error).split("\n\t")
        raise CheckpointError(
            f"the checkpoint does not fit the network: {lines[min(1, len(lines) - 1)].strip()}",
            "it must be of the same network, width and bits.",
        ) from error


def formatted(x: Tensor, config: TrialConfig) -> Tensor:
    """The batch in the memory format of the trial."""
    return x.contiguous(memory_format=torch.channels_last) if config.channels_last else x


def autocast(config: TrialConfig, device: torch.device) -> torch.autocast:
    """Mixed precision as the configuration asks for it."""
    dtype = torch.float16 if config.amp == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype, enabled=config.amp != "off")


def is_soft(network: nn.Module) -> bool:
    """Whether some layer trains with another weight than inference uses."""
    return any(layer.soft for layer in low_bit_layers(network).values())
