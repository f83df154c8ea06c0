"""The network that runs from a packed file: its tensors, and the modules that compute with them.

No A, no statistics and no gradient are left: a low-bit layer has the weight of inference, a BN
is a scale and a shift.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from slb_autotune.config.methods import activation_name
from slb_autotune.config.trial import TrialConfig
from slb_autotune.cost import float_tensors, lay_out
from slb_autotune.data.base import DataInfo
from slb_autotune.errors import CheckpointError
from slb_autotune.export.format import pack_bits, unpack_bits
from slb_autotune.nets import build_network
from slb_autotune.quant.activations import activation_quantizer
from slb_autotune.quant.convert import NoRelu
from slb_autotune.quant.layers import Convolution, LowBitLayer
from slb_autotune.quant.state_norm import StateBatchNorm2d
from slb_autotune.training.network import use_memory_format


class FoldedNorm2d(nn.Module):
    """A BN as eval mode computes it: y * scale + shift."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, y: Tensor) -> Tensor:
        """The same operation as in StateBatchNorm2d, so that results are bit-identical."""
        return torch.addcmul(self.shift.view(1, -1, 1, 1), y, self.scale.view(1, -1, 1, 1))

    def extra_repr(self) -> str:
        """Show the number of channels."""
        return str(len(self.scale))


class PackedLayer(LowBitLayer):
    """A low-bit layer as eval mode computes it; the weight of inference is decoded once."""

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
def inference_tensors(network: nn.Module) -> dict[str, Tensor]:
    """The tensors of a packed file, by name, from a trained network."""
    return {
        f"{name}.{key}".lstrip("."): tensor.detach().contiguous()
        for name, module in network.named_modules()
        for key, tensor in _own_tensors(module).items()
    }


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of one module, without those of its children."""
    if isinstance(module, StateBatchNorm2d | nn.BatchNorm2d):
        scale, shift = _folded(module)
        return {"scale": scale, "shift": shift}
    own = float_tensors(module)
    if isinstance(module, LowBitLayer):
        own["codes"] = pack_bits(module.codes(), module.bits)
    return own


def _folded(norm: StateBatchNorm2d | nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Scale and shift of a BN; `quantize` leaves a plain one only where the forward skips it."""
    if isinstance(norm, nn.BatchNorm2d):
        norm = StateBatchNorm2d.from_batch_norm(norm, "off")
    return norm.folded()


@torch.no_grad()
def inference_network(
    config: TrialConfig, info: DataInfo, tensors: Mapping[str, Tensor]
) -> nn.Module:
    """The network in eval mode, built from the tensors of a packed file.

    The quantised form is laid out on the meta device, where A takes no memory. Its low-bit layers
    and BNs are then put into a float network, which holds whatever else the network's own
    constructor creates.
    """
    with torch.random.fork_rng(devices=[]):
        layout = lay_out(config, info).network.float()
        _check_tensors(layout, tensors)
        network = build_network(
            config.network, info.in_channels, info.num_classes, info.image_size
        ).float()
    _replace(network, _inference_modules(layout, config, tensors))
    use_memory_format(network, config)
    for name, parameter in network.named_parameters():
        if name in tensors:  # an activation quantiser may have some that only training needs
            parameter.copy_(tensors[name])
    return network.requires_grad_(False).eval()


def _check_tensors(layout: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not exactly the ones that the network expects."""
    with torch.device("meta"):
        expected = inference_tensors(layout)
    for name in sorted(expected.keys() ^ tensors.keys()):
        state = "missing" if name in expected else "not known"
        raise CheckpointError(f"the tensor {name} is {state}")
    for name, tensor in expected.items():
        if (found := _kind(tensors[name])) != (kind := _kind(tensor)):
            raise CheckpointError(f"the tensor {name} must be {kind}; got {found}")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"


def _inference_modules(
    layout: nn.Module, config: TrialConfig, tensors: Mapping[str, Tensor]
) -> dict[str, nn.Module]:
    """Name -> the module that replaces a low-bit layer, a removed ReLU or a BN at inference."""
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
    """Replace modules by name, under every other name that the same module has.

    A name that the float network does not have is that of a BN inside a packed layer.
    """
    names: dict[nn.Module, list[str]] = defaultdict(list)
    for name, module in network.named_modules(remove_duplicate=False):
        names[module].append(name)
    aliases = {name: same for same in names.values() for name in same}
    for name, module in new.items():
        for alias in aliases.get(name, [name]):
            parent, _, key = alias.rpartition(".")
            setattr(network.get_submodule(parent), key, module)
