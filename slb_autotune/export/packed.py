"""The packed low-bit file: what inference needs of a trained network, and nothing else.

It is a safetensors file. For a layer or parameter NAME of the network it holds

    NAME.codes              uint8: the index of each low-bit weight, `bits` bits each, lowest first
    NAME.alpha, ...         float32: a rival's scale factors or learned levels; SLB has none
    NAME.scale, NAME.shift  float32: a BN as eval mode computes it, y * scale + shift
    NAME                    float32: every other parameter, as it was trained

and, under one key of its metadata, JSON with the trial's configuration. The bytes of the tensors
are `size_bytes` as `slb_autotune.cost` defines it. Nothing in the file can run.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from slb_autotune import data
from slb_autotune.config.files import write_atomically
from slb_autotune.config.trial import NetworkConfig, TrialConfig, activation_name
from slb_autotune.cost import lay_out
from slb_autotune.data.base import DataInfo
from slb_autotune.errors import CheckpointError, ConversionError, SlbError
from slb_autotune.nets import build_network
from slb_autotune.nets.torchvision_import import import_torchvision
from slb_autotune.quant.activations import activation_quantizer
from slb_autotune.quant.convert import NoRelu
from slb_autotune.quant.layers import Convolution, LowBitLayer
from slb_autotune.quant.rivals.base import WeightQuantizer
from slb_autotune.quant.state_norm import StateBatchNorm2d
from slb_autotune.quant.states import network_state
from slb_autotune.training.evaluation import load_run
from slb_autotune.training.network import formatted
from slb_autotune.training.run_folder import RunFolder
from slb_autotune.version import VERSION

FORMAT = 1
# safetensors writes several keys of metadata in random order; one key keeps files the same.
METADATA_KEY = "slb_autotune"


@dataclass(frozen=True)
class Packed:
    """What a packed file holds."""

    config: TrialConfig
    info: DataInfo
    metrics: dict[str, float | None]
    version: str
    tensors: dict[str, Tensor]

    @property
    def payload_bytes(self) -> int:
        """Bytes of all tensors: the network's `size_bytes`."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class _Header(BaseModel):
    """The metadata of the file."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: int
    version: str
    config: dict[str, Any]
    data: DataInfo
    metrics: dict[str, float | None]
    checksum: str


# Writing


def pack_run(run_folder: Path, path: Path) -> Path:
    """Write the network of a finished run as a packed file, and give the file's path."""
    config, network = load_run(run_folder, torch.device("cpu"))
    result = RunFolder(run_folder).result() or {}
    # The time that training took is not of the network: the same network gives the same file.
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

    Nothing is written unless the network made again from the file's content predicts the same,
    bit for bit.
    """
    path = Path(path)
    with _at_inference(network) as network:
        tensors = _contents(network)
        _check_float32(network, tensors)
        _check_predictions(network, config, info, tensors)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "config": config.to_mapping(),
        "data": asdict(info),
        "metrics": {name: _finite(value) for name, value in (metrics or {}).items()},
    }
    header["checksum"] = checksum(header, tensors)
    text = json.dumps(header, sort_keys=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, safetensors.torch.save(tensors, {METADATA_KEY: text}))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror or error}", "choose another path."
        ) from error
    return path


def checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the header and every tensor; a flipped bit of a weight shows nowhere else."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Codes as a stream of `bits` bits each, lowest bit first, in ceil(codes * bits / 8) bytes."""
    places = torch.arange(bits, dtype=torch.uint8, device=codes.device)
    stream = (codes.reshape(-1, 1) >> places).bitwise_and_(1).view(-1)
    stream = F.pad(stream, (0, -len(stream) % 8)).view(-1, 8)
    places = torch.arange(8, dtype=torch.uint8, device=codes.device)
    return (stream << places).sum(1, dtype=torch.uint8)


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """The `count` codes that `pack_bits` was given, as uint8."""
    stream = (packed.view(-1, 1) >> torch.arange(8, dtype=torch.uint8)).bitwise_and_(1)
    places = torch.arange(bits, dtype=torch.uint8)
    return (stream.view(-1)[: count * bits].view(count, bits) << places).sum(1, dtype=torch.uint8)


@contextmanager
def _at_inference(network: nn.Module) -> Iterator[nn.Module]:
    """The network on the CPU, in eval mode and the discrete state, and as it was afterwards."""
    if any(p.device.type != "cpu" for p in network.parameters()):
        network = copy.deepcopy(network).cpu()
    modes = {module: module.training for module in network.modules()}
    try:
        with network_state(network, None):
            yield network.eval()
    finally:
        for module, training in modes.items():
            module.training = training


@torch.no_grad()
def _contents(network: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the file, by its name there."""
    return {
        f"{name}.{key}".lstrip("."): tensor.detach().contiguous()
        for name, module in network.named_modules()
        for key, tensor in _own_tensors(module).items()
    }


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """What inference needs of a module; what its children hold is theirs to give."""
    if isinstance(module, StateBatchNorm2d | nn.BatchNorm2d):
        scale, shift = _folded(module)
        return {"scale": scale, "shift": shift}
    if isinstance(module, WeightQuantizer):
        return {}  # what inference needs of it is in its layer's `stored`
    unneeded = getattr(module, "training_only", ())
    own: dict[str, Tensor] = {
        name: parameter
        for name, parameter in module.named_parameters(recurse=False)
        if name not in unneeded
    }
    if isinstance(module, LowBitLayer):
        own = {name: tensor for name, tensor in own.items() if tensor is not module.trained}
        own |= module.stored()
        own["codes"] = pack_bits(module.codes(), module.bits)
    return own


def _folded(norm: StateBatchNorm2d | nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """The pair of a BN; `quantize` leaves a plain one only where the forward pass skips it."""
    if isinstance(norm, nn.BatchNorm2d):
        norm = StateBatchNorm2d.from_batch_norm(norm, "off")
    return norm.folded()


def _finite(value: float) -> float | None:
    """JSON has no NaN: a metric that is not a number is missing."""
    return float(value) if math.isfinite(value) else None


def _check_float32(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse numbers of another precision; codes have none, but the A that they come from has."""
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
    """Refuse a network that the file would not give back bit for bit."""
    try:
        restored = _rebuild(config, info, tensors)
    except CheckpointError as error:
        raise ConversionError(
            f"the network is not the one that its configuration describes: {error.message}",
            "save it with the configuration that it was trained with.",
        ) from error
    shape = (4, info.in_channels, info.image_size, info.image_size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    images = formatted(images, config)
    if not _same(network(images.clone()), restored(images.clone())):
        raise ConversionError(
            "the network made again from its packed form does not predict the same",
            "what is trained must be a parameter of a module, or a BatchNorm2d that is called as "
            "a module; numbers kept elsewhere, such as the statistics of a BatchNorm1d, are not "
            "packed.",
        )


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, 0.0, 0.0, equal_nan=True)


# Reading


def load_packed(path: Path, *, trust_network: bool = False) -> nn.Module:
    """The network of a packed file, on the CPU and in eval mode.

    A file may name a network of somebody's own as `module:function`; that module is imported,
    and with it its code run, only where `trust_network` says so.
    """
    packed = read_packed(path)
    if not trust_network and not _is_ours(packed.config.network):
        raise CheckpointError(
            f"{path} holds the network {packed.config.network.name!r}, and making it would run "
            "code or fetch files from outside slb_autotune",
            "if you trust the file and that module, pass trust_network=True.",
        )
    try:
        return _rebuild(packed.config, packed.info, packed.tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{path} does not fit its own network: {error.message}") from error
    except Exception as error:  # what a network's own code raises may be of any kind
        text = error.message if isinstance(error, SlbError) else str(error)
        words = " ".join(text.split())
        raise CheckpointError(f"the network of {path} cannot be made: {words}") from error


def read_packed(path: Path) -> Packed:
    """The content of a packed file, checked; the network is not made."""
    tensors, text = _read_tensors(Path(path))
    try:
        values = json.loads(text)
        known = values["format"] == FORMAT
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise _damaged(path, "its metadata cannot be read") from error
    if not known:
        raise CheckpointError(
            f"{path} has format {values['format']!r}; this version reads format {FORMAT}",
            "read it with the version of slb_autotune that wrote it.",
        )
    if values.pop("checksum", None) != checksum(values, tensors):
        raise _damaged(path, "its checksum does not match")
    try:
        header = _Header.model_validate_json(text)
        config = TrialConfig.from_mapping(header.config)
    except (ValidationError, SlbError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} has metadata that is not understood: {reason}") from error
    return Packed(config, header.data, header.metrics, header.version, tensors)


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors, each in memory of its own, and our metadata."""
    try:
        path.open("rb").close()  # says plainly why not, where safetensors does not
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        words = error.strerror or str(error)
        raise CheckpointError(f"{path} cannot be read: {words}", "check the path.") from error
    except Exception as error:  # safetensors raises many kinds on a damaged file
        raise _damaged(path, "it is no safetensors file, or a part of one") from error
    if METADATA_KEY not in metadata:
        raise CheckpointError(
            f"{path} is a safetensors file of another program",
            "`slb-autotune export` writes packed networks.",
        )
    return tensors, metadata[METADATA_KEY]


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a whole packed network: {reason}", "copy the file or export it again."
    )


def _is_ours(network: NetworkConfig) -> bool:
    """Whether making the network runs our code, or torchvision's without a download, alone."""
    if ":" not in network.name:
        return True
    module, _, name = network.name.partition(":")
    fetches = any("weights" in option or "pretrained" in option for option in network.options)
    if module != "torchvision" or fetches:
        return False
    models = import_torchvision().models
    return name in models.list_models(module=models)


# The network at inference


class FoldedNorm2d(nn.Module):
    """A BN as eval mode computes it: y * scale + shift."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, y: Tensor) -> Tensor:
        """The same operation as in StateBatchNorm2d, which makes it the same to the bit."""
        return torch.addcmul(self.shift.view(1, -1, 1, 1), y, self.scale.view(1, -1, 1, 1))

    def extra_repr(self) -> str:
        """Show the size."""
        return str(len(self.scale))


class PackedLayer(LowBitLayer):
    """A low-bit layer as eval mode computes it: the weight of inference, made once."""

    weight: Tensor

    def __init__(self, like: LowBitLayer, weight: Tensor, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(like.weight_shape, like.bits, bias=False)
        self.register_buffer("weight", weight)
        for name in ("bias", "output_scale"):
            value = tensors.get(name)
            setattr(self, name, None if value is None else nn.Parameter(value.clone()))

    def quantized_weight(self) -> Tensor:
        """The weight of inference."""
        return self.weight

    continuous_weight = quantized_weight


class PackedConv2d(Convolution, PackedLayer):
    """A low-bit convolution at inference."""


@torch.no_grad()
def _rebuild(config: TrialConfig, info: DataInfo, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The network at inference.

    The quantised form is laid out on the meta device, where A takes no memory; then its layers
    take their places in the float network, which holds whatever else the network's code makes.
    """
    with torch.random.fork_rng(devices=[]):
        layout = lay_out(config, info).network.float()
        _check_tensors(layout, tensors)
        network = build_network(
            config.network, info.in_channels, info.num_classes, info.image_size
        ).float()
    _replace(network, _inference_modules(layout, config, tensors))
    for name, parameter in network.named_parameters():
        if config.channels_last and parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        if name in tensors:  # an activation quantiser may have some that only training needs
            parameter.copy_(tensors[name])
    return network.requires_grad_(False).eval()


def _check_tensors(layout: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not exactly the ones that the network has room for."""
    with torch.device("meta"):
        wanted = _contents(layout)
    for name in sorted(wanted.keys() ^ tensors.keys()):
        state = "missing" if name in wanted else "not known"
        raise CheckpointError(f"the tensor {name} is {state}")
    for name, tensor in wanted.items():
        if (found := _kind(tensors[name])) != (expected := _kind(tensor)):
            raise CheckpointError(f"the tensor {name} must be {expected}; got {found}")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"


def _inference_modules(
    layout: nn.Module, config: TrialConfig, tensors: Mapping[str, Tensor]
) -> dict[str, nn.Module]:
    """What stands at inference in the place of each SLB convolution and each BN, by name."""
    new: dict[str, nn.Module] = {}
    for name, module in layout.named_modules():
        if isinstance(module, LowBitLayer):
            new[name] = _packed_layer(name, module, config, tensors)
        elif isinstance(module, NoRelu):
            new[name] = NoRelu()
        elif isinstance(module, StateBatchNorm2d | nn.BatchNorm2d):
            scale, shift = (tensors[f"{name}.{key}"] for key in ("scale", "shift"))
            new[name] = FoldedNorm2d(scale.clone(), shift.clone())
    return new


def _packed_layer(
    name: str, layer: LowBitLayer, config: TrialConfig, tensors: Mapping[str, Tensor]
) -> PackedLayer:
    own = {
        key.removeprefix(f"{name}."): tensor
        for key, tensor in tensors.items()
        if key.startswith(f"{name}.")
    }
    codes = unpack_bits(own["codes"], layer.bits, layer.weight_shape.numel())
    weight = layer.decode(codes.view(layer.weight_shape), own)
    new = PackedConv2d(layer, weight, own)
    new.geometry_of(layer)
    if layer.activation is not None:
        bits = layer.activation.bits
        assert isinstance(bits, int)
        quantiser = activation_name(config.method, config.activation)
        new.activation = activation_quantizer(quantiser, bits)
    return new


def _replace(network: nn.Module, new: Mapping[str, nn.Module]) -> None:
    """Put the new modules in, under every name that the old ones have."""
    for name, module in new.items():
        owner, _, key = name.rpartition(".")
        place = network.get_submodule(owner)
        if isinstance(place, PackedLayer):
            setattr(place, key, module)
            continue
        old = place.get_submodule(key)
        for parent in list(network.modules()):
            # named_children() leaves out a module that it has met under another name.
            for child_name, child in parent._modules.items():
                if child is old:
                    parent._modules[child_name] = module
