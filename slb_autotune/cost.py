"""The cost of a network, from its bits alone: bytes, bit-operations, training memory.

`size_bytes` counts ceil(params * bits / 8) for each quantised layer and 4 bytes for each float
number that inference needs; a BN needs a folded scale and shift per channel.
`bitops` is macs * weight_bits * activation_bits, with 32 x 32 for float layers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from slb_autotune.config.trial import TrialConfig
from slb_autotune.data.base import DataInfo
from slb_autotune.errors import ConfigError
from slb_autotune.nets import build_network
from slb_autotune.quant.convert import quantize_watched, resolve_bits, watched_layers
from slb_autotune.quant.layers import LowBitLayer
from slb_autotune.quant.rivals.base import WeightQuantizer
from slb_autotune.quant.state_norm import StateBatchNorm2d
from slb_autotune.quant.watch import Observation, watch

COLUMNS = (
    "name",
    "kind",
    "params",
    "weight_bits",
    "activation_bits",
    "bytes",
    "macs",
    "bitops",
)


@dataclass(frozen=True)
class Cost:
    """The cost of a trial's network."""

    size_bytes: int
    bitops: int
    average_weight_bits: float
    training_bytes: int

    def metrics(self) -> dict[str, float]:
        """The costs that are reported as metrics; training memory is not."""
        return {
            "size_bytes": self.size_bytes,
            "bitops": self.bitops,
            "average_weight_bits": self.average_weight_bits,
        }


@torch.no_grad()
def profile(network: nn.Module, input_shape: tuple[int, ...]) -> pd.DataFrame:
    """One row per module that holds numbers: name, kind, params, bits, bytes, macs, bitops.

    `input_shape` is that of one example, (channels, height, width). Parameters of quantised
    layers are counted as weights, not as the entries of A.
    """
    return _table(network, _count_macs(network, input_shape))


def _table(network: nn.Module, macs: Mapping[str, int]) -> pd.DataFrame:
    rows = [
        row
        for name, module in network.named_modules()
        if (row := _row(name, module, macs.get(name, 0))) is not None
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def size_bytes(table: pd.DataFrame) -> int:
    """Bytes of the whole network, from its profile."""
    return int(table["bytes"].sum())


def bitops(table: pd.DataFrame) -> int:
    """Bit-operations of one example, from the profile."""
    return int(table["bitops"].sum())


def average_weight_bits(network: nn.Module, layers: list[str]) -> float:
    """Mean bits of the weights of `layers`, the ones whose bits can be set."""
    bits = weights = 0
    for layer in (network.get_submodule(name) for name in layers):
        count = _weight_count(layer)
        weights += count
        bits += count * (layer.bits if isinstance(layer, LowBitLayer) else 32)
    return bits / weights if weights else 32.0


def _row(name: str, module: nn.Module, macs: int) -> dict[str, Any] | None:
    """The row of one module, without its children; None where inference stores none of it."""
    floats = sum(tensor.numel() for tensor in float_tensors(module).values())
    row: dict[str, Any] = {"name": name, "weight_bits": 32, "activation_bits": 32, "macs": macs}
    if isinstance(module, LowBitLayer):
        weights = module.weight_shape.numel()
        row |= {"kind": _kind(module), "params": weights + floats, "weight_bits": module.bits}
        row["activation_bits"] = getattr(module.activation, "bits", 32)
        row["bytes"] = ceil(weights * module.bits / 8) + 4 * floats
    elif isinstance(module, StateBatchNorm2d | nn.BatchNorm2d):
        row |= {"kind": "norm", "params": floats, "bytes": 8 * module.num_features}
    elif floats:
        row |= {"kind": _kind(module), "params": floats, "bytes": 4 * floats}
    else:
        return None
    row["bitops"] = macs * row["weight_bits"] * row["activation_bits"]
    return row


def float_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The float numbers of a module that inference needs, by name, without its children's.

    A low-bit layer has codes in place of the parameter that is trained. A weight quantiser has
    none: what inference needs of it is in its layer's `stored()`. `training_only` names what an
    activation quantiser learns with and inference does without.
    """
    if isinstance(module, WeightQuantizer):
        return {}
    unused = getattr(module, "training_only", ())
    own: dict[str, Tensor] = {
        name: parameter
        for name, parameter in module.named_parameters(recurse=False)
        if name not in unused
    }
    if isinstance(module, LowBitLayer):
        own = {name: tensor for name, tensor in own.items() if tensor is not module.trained}
        own |= module.stored()
    return own


def _kind(module: nn.Module) -> str:
    if isinstance(module, LowBitLayer | nn.Conv2d | nn.Linear):
        return "conv" if len(weight_shape(module)) == 4 else "linear"
    return type(module).__name__.lower()


def weight_shape(layer: nn.Module) -> torch.Size:
    """The shape of a layer's weight, low-bit or float."""
    if isinstance(layer, LowBitLayer):
        return layer.weight_shape
    assert isinstance(layer.weight, Tensor)
    return layer.weight.shape


def _count_macs(network: nn.Module, input_shape: tuple[int, ...]) -> dict[str, int]:
    """Multiply-accumulates per layer for one example, from a forward pass on the meta device."""
    macs: dict[str, int] = {}

    def count(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        shape = weight_shape(module)
        positions = output.numel() // shape[0]
        macs[names[module]] = macs.get(names[module], 0) + positions * prod(shape)

    shadow = copy.deepcopy(network).to("meta").eval()
    names = {module: name for name, module in shadow.named_modules()}
    dtype = next((p.dtype for p in network.parameters()), torch.float32)
    for module in names:
        if isinstance(module, LowBitLayer | nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
        if isinstance(module, LowBitLayer):  # quantisation has no influence on shapes
            weight = torch.empty(module.weight_shape, device="meta", dtype=dtype)
            module.activation = None
            module.quantized_weight = weight.clone  # type: ignore[method-assign]
    shadow(torch.zeros(1, *input_shape, device="meta", dtype=dtype))
    return macs


@dataclass(frozen=True)
class Layout:
    """A trial's quantised network without its numbers, on the meta device."""

    network: nn.Module
    layers: list[str]  # the layers whose bits can be set
    macs: dict[str, int]  # by layer, for one example


@dataclass(frozen=True)
class _Sketch:
    """A trial's float network on the meta device, and what its forward pass showed."""

    network: nn.Module
    seen: Observation

    def layers(self, config: TrialConfig) -> list[str]:
        return watched_layers(self.network, self.seen, keep_float=config.keep_float)


def _sketch(config: TrialConfig, info: DataInfo) -> _Sketch:
    with torch.device("meta"):
        network = build_network(
            config.network, info.in_channels, info.num_classes, info.image_size
        )
        example = torch.zeros(1, *info.input_shape)
    return _Sketch(network, watch(network, example))


def _laid_out(sketch: _Sketch, config: TrialConfig) -> Layout:
    """Quantise the sketch's own network."""
    network, seen = sketch.network, sketch.seen
    layers = sketch.layers(config)
    names = {module: name for name, module in network.named_modules()}
    macs = {
        names[layer]: uses * prod(weight_shape(layer)) for layer, uses in seen.positions.items()
    }
    with torch.device("meta"):
        quantize_watched(
            network,
            seen,
            config.weight_bits,
            config.activation_bits,
            config.method,
            activation=config.activation,
            norm=config.norm,
            keep_float=config.keep_float,
        )
    return Layout(network, layers, macs)


def lay_out(config: TrialConfig, info: DataInfo) -> Layout:
    """The trial's quantised network on the meta device, where it takes no memory."""
    return _laid_out(_sketch(config, info), config)


def estimate(config: TrialConfig, info: DataInfo) -> Cost:
    """The cost of the trial's network; nothing is trained and no memory is allocated for it."""
    layout = lay_out(config, info)
    table = _table(layout.network, layout.macs)
    return Cost(
        size_bytes(table),
        bitops(table),
        average_weight_bits(layout.network, layout.layers),
        training_bytes(layout.network, config),
    )


class CostModel:
    """Costs of many allocations of one network, as sums over its layers.

    Each layer's share is looked up in a network with the same bits everywhere. Its bytes,
    operations and training memory depend on its own bits alone, so the sums are exact.
    """

    def __init__(self, info: DataInfo) -> None:
        self.info = info
        self._sketches: dict[str, _Sketch] = {}
        self._shares: dict[str, _Shares] = {}
        self._layers: dict[str, list[str]] = {}

    def layers(self, config: TrialConfig) -> list[str]:
        """The layers whose bits can be set."""
        key = _network_key(config)
        if key not in self._layers:
            self._layers[key] = self._sketch(config).layers(config)
        return self._layers[key]

    def cost(self, config: TrialConfig) -> Cost:
        """The same as `estimate`, without building the network again."""
        layers = self.layers(config)
        weights = resolve_bits("weight_bits", config.weight_bits, layers)
        inputs = resolve_bits("activation_bits", config.activation_bits, layers)
        total = _Share()
        bits = numbers = 0.0
        for layer in layers:
            # The activations of a float layer stay float.
            pair = (weights[layer], 32 if weights[layer] == 32 else inputs[layer])
            shares = self._uniform(config, pair)
            total += shares.layers[layer]
            numbers += shares.weights[layer]
            bits += shares.weights[layer] * pair[0]
        total += self._uniform(config, (32, 32)).rest
        average = bits / numbers if numbers else 32.0
        return Cost(total.size_bytes, total.bitops, average, total.training_bytes)

    def _uniform(self, config: TrialConfig, pair: tuple[int, int]) -> _Shares:
        key = f"{_network_key(config)} {pair}"
        if key not in self._shares:
            # With 32 bits in between, every update is valid whatever the bits were.
            plain = config.updated({"weight_bits": 32, "activation_bits": 32})
            same = plain.updated({"weight_bits": pair[0], "activation_bits": pair[1]})
            layout = _laid_out(copy.deepcopy(self._sketch(same)), same)
            self._shares[key] = _shares(layout, same)
        return self._shares[key]

    def _sketch(self, config: TrialConfig) -> _Sketch:
        key = repr(config.network)
        if key not in self._sketches:
            self._sketches[key] = _sketch(config, self.info)
        return self._sketches[key]


@dataclass(frozen=True)
class _Share:
    size_bytes: int = 0
    bitops: int = 0
    training_bytes: int = 0

    def __add__(self, other: _Share) -> _Share:
        return _Share(
            self.size_bytes + other.size_bytes,
            self.bitops + other.bitops,
            self.training_bytes + other.training_bytes,
        )


@dataclass(frozen=True)
class _Shares:
    """The cost of each layer at given bits, with the modules inside it, and of the rest."""

    layers: dict[str, _Share]
    weights: dict[str, int]
    rest: _Share


def _network_key(config: TrialConfig) -> str:
    parts = (config.network, config.method, config.activation, config.keep_float)
    return repr((*parts, config.norm, config.optimizer.name, config.optimizer.momentum > 0))


def _shares(layout: Layout, config: TrialConfig) -> _Shares:
    network = layout.network
    table = _table(network, layout.macs)
    everything = _Share(size_bytes(table), bitops(table), training_bytes(network, config))
    found: dict[str, _Share] = {}
    weights: dict[str, int] = {}
    rest = everything
    for layer in layout.layers:
        module = network.get_submodule(layer)
        own = table[(table["name"] == layer) | table["name"].str.startswith(f"{layer}.")]
        share = _Share(size_bytes(own), bitops(own), training_bytes(module, config))
        found[layer] = share
        weights[layer] = _weight_count(module)
        rest += _Share(-share.size_bytes, -share.bitops, -share.training_bytes)
    return _Shares(found, weights, rest)


def _weight_count(layer: nn.Module) -> int:
    return weight_shape(layer).numel()


def training_bytes(network: nn.Module, config: TrialConfig) -> int:
    """Memory for the parameters: A, gradients, optimiser state, W_c and W_q.

    Activations are not included; they depend on the batch and not on the bits.
    """
    momentum = config.optimizer.momentum > 0
    states = 2 if config.optimizer.name == "adam" else int(momentum)
    total = 0
    for parameter in network.parameters():
        total += parameter.numel() * parameter.element_size() * (2 + states)
    for module in network.modules():
        if isinstance(module, LowBitLayer):
            # W_c, its gradient and W_q are alive at once.
            total += 3 * module.weight_shape.numel() * module.trained.element_size()
    return total


def check_memory(cost: Cost, available: int, where: str) -> None:
    """Refuse a trial whose parameters alone cannot fit."""
    if cost.training_bytes > available:
        raise ConfigError(
            f"training needs {cost.training_bytes / 1e9:.1f} GB for parameters, gradients and "
            f"optimiser state, but {where} has {available / 1e9:.1f} GB free",
            "A holds 2**bits numbers per weight: lower weight_bits or the width, or use sgd.",
        )
