"""Saving a trained network as a packed file, and loading the network back from it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from slb_autotune import data
from slb_autotune.config.trial import NetworkConfig, TrialConfig
from slb_autotune.data.base import DataInfo
from slb_autotune.errors import CheckpointError, ConversionError, SlbError
from slb_autotune.export.format import Packed, read_packed, write_packed
from slb_autotune.export.runtime import inference_network, inference_tensors
from slb_autotune.nets.torchvision_import import import_torchvision
from slb_autotune.quant.states import network_state
from slb_autotune.training.evaluation import load_run
from slb_autotune.training.network import formatted
from slb_autotune.training.run_folder import RunFolder
from slb_autotune.version import VERSION


def pack_run(run_folder: Path, path: Path) -> Path:
    """Write the network of a finished run as a packed file, and return the file's path."""
    config, network = load_run(run_folder, torch.device("cpu"))
    result = RunFolder(run_folder).result() or {}
    # Training time is no property of the network: the same network gives the same file.
    metrics = {k: v for k, v in result.get("metrics", {}).items() if k != "seconds"}
    return save_packed(network, config, path, data.info(config.data), metrics)


def save_packed(
    network: nn.Module,
    config: TrialConfig,
    path: Path,
    info: DataInfo,
    metrics: Mapping[str, float] | None = None,
) -> Path:
    """Write `network`, which `config` and `info` describe, as a packed file.

    Nothing is written unless the network rebuilt from the file's content predicts the same,
    bit for bit.
    """
    path = Path(path)
    with _at_inference(network) as network:
        tensors = inference_tensors(network)
        _check_float32(network, tensors)
        _check_predictions(network, config, info, tensors)
    values = {name: _finite(value) for name, value in (metrics or {}).items()}
    write_packed(Packed(config, info, values, VERSION, tensors), path)
    return path


def load_packed(path: Path, *, trust_network: bool = False) -> nn.Module:
    """The network of a packed file, on the CPU and in eval mode.

    A file may name a user's own network as `module:function`; that module is imported, and so
    its code runs, only with `trust_network=True`.
    """
    packed = read_packed(path)
    if not trust_network and not _is_ours(packed.config.network):
        raise CheckpointError(
            f"{path} holds the network {packed.config.network.name!r}, and building it would run "
            "code or fetch files from outside slb_autotune",
            "if you trust the file and that module, pass trust_network=True.",
        )
    try:
        return inference_network(packed.config, packed.info, packed.tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{path} does not fit its own network: {error.message}") from error
    except Exception as error:  # a network's own code may raise any kind
        text = error.message if isinstance(error, SlbError) else str(error)
        reason = " ".join(text.split())
        raise CheckpointError(f"the network of {path} cannot be built: {reason}") from error


@contextmanager
def _at_inference(network: nn.Module) -> Iterator[nn.Module]:
    """The network on the CPU, in eval mode and discrete state; restored afterwards."""
    if any(p.device.type != "cpu" for p in network.parameters()):
        network = copy.deepcopy(network).cpu()
    modes = {module: module.training for module in network.modules()}
    try:
        with network_state(network, None):
            yield network.eval()
    finally:
        for module, training in modes.items():
            module.training = training


def _finite(value: float) -> float | None:
    """JSON has no NaN: a metric that is not a number is missing."""
    return float(value) if math.isfinite(value) else None


def _check_float32(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse other precisions; codes have none, but the A that they come from has."""
    numbers = {name: tensor for name, tensor in tensors.items() if tensor.dtype != torch.uint8}
    for name, tensor in {**numbers, **dict(network.named_parameters())}.items():
        if tensor.dtype != torch.float32:
            raise ConversionError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}; "
                "a packed file holds float32 and low-bit codes",
                "turn the network into float32 first.",
            )


@torch.no_grad()
def _check_predictions(
    network: nn.Module, config: TrialConfig, info: DataInfo, tensors: Mapping[str, Tensor]
) -> None:
    """Refuse a network that the file would not restore bit for bit."""
    try:
        restored = inference_network(config, info, tensors)
    except CheckpointError as error:
        raise ConversionError(
            f"the network is not the one that its configuration describes: {error.message}",
            "save it with the configuration that it was trained with.",
        ) from error
    images = torch.randn(4, *info.input_shape, generator=torch.Generator().manual_seed(0))
    images = formatted(images, config)
    if not _same(network(images.clone()), restored(images.clone())):
        raise ConversionError(
            "the network rebuilt from its packed form does not predict the same",
            "what is trained must be a parameter of a module, or a BatchNorm2d that is called as "
            "a module; numbers kept elsewhere, such as the statistics of a BatchNorm1d, are not "
            "packed.",
        )


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, 0.0, 0.0, equal_nan=True)


def _is_ours(network: NetworkConfig) -> bool:
    """Whether building the network runs only our code, or torchvision's without a download."""
    if ":" not in network.name:
        return True
    module, _, name = network.name.partition(":")
    fetches = any("weights" in option or "pretrained" in option for option in network.options)
    if module != "torchvision" or fetches:
        return False
    models = import_torchvision().models
    return name in models.list_models(module=models)
