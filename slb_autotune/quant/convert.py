"""quantize(): any float network into its quantised form, and which layers a search may set."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeGuard

import torch
from torch import Tensor, nn

from slb_autotune.config.methods import ACTIVATIONS, METHODS, activation_name
from slb_autotune.config.trial import NormConfig
from slb_autotune.errors import ConfigError, ConversionError, nearest
from slb_autotune.quant.activations import activation_quantizer
from slb_autotune.quant.layers import LowBitLayer, NormLink
from slb_autotune.quant.state_norm import StateBatchNorm2d
from slb_autotune.quant.watch import Observation, watch

Bits = int | Mapping[str, int]


def keep_float(layer: nn.Module, bits: int, **_: object) -> nn.Module:
    """The method `float`: the layer as it is."""
    return layer


def quantisable_layers(
    network: nn.Module,
    example_input: Tensor | None = None,
    *,
    keep_float: Collection[str] | None = None,
    include_linear: bool = False,
) -> list[str]:
    """The names of the layers whose bits can be set, in the order in which they run.

    Every convolution but the first, less the layers that stay float: `keep_float`, or where that
    is None the network's own attribute `keep_float`. `include_linear` adds linear layers.
    """
    return watched_layers(
        network,
        watch(network, example_input),
        keep_float=keep_float,
        include_linear=include_linear,
    )


def watched_layers(
    network: nn.Module,
    seen: Observation,
    *,
    keep_float: Collection[str] | None = None,
    include_linear: bool = False,
) -> list[str]:
    """The same, of a network one forward pass of which was seen."""
    return [name for name, _ in _candidates(network, seen, keep_float, include_linear)]


def quantize(
    network: nn.Module,
    weight_bits: Bits,
    activation_bits: Bits = 32,
    method: str = "slb",
    example_input: Tensor | None = None,
    *,
    activation: str = "method",
    norm: NormConfig | None = None,
    keep_float: Collection[str] | None = None,
    include_linear: bool = False,
    keep_weights: bool = False,
    spread: float | None = None,
) -> nn.Module:
    """A quantised copy of `network`.

    Bits are one number, or a mapping from layer names (or patterns such as `layer1.*`) to
    numbers; layers that no key matches stay float. One forward pass is watched to find the first
    convolution, which stays float, and the BN of each convolution, which becomes a state BN. A
    quantised convolution that no BN follows gets a state BN of its own; the last layer, and a
    linear one, gets one float scale instead. `activation` names the quantiser of activations,
    `method` being the method's own; where it takes signs, a ReLU before it is removed.
    `keep_weights` starts SLB's search around the network's weights, `spread` is the standard
    deviation of A; a rival always starts from the network's weights.
    """
    network = copy.deepcopy(network)
    quantize_watched(
        network,
        watch(network, example_input),
        weight_bits,
        activation_bits,
        method,
        activation=activation,
        norm=norm,
        keep_float=keep_float,
        include_linear=include_linear,
        keep_weights=keep_weights,
        spread=spread,
    )
    return network


def quantize_watched(
    network: nn.Module,
    seen: Observation,
    weight_bits: Bits,
    activation_bits: Bits,
    method: str,
    *,
    activation: str = "method",
    norm: NormConfig | None = None,
    keep_float: Collection[str] | None = None,
    include_linear: bool = False,
    keep_weights: bool = False,
    spread: float | None = None,
) -> None:
    """Quantise `network` itself, one forward pass of which was seen."""
    norm = NormConfig() if norm is None else norm
    _check_float(network)
    layers = dict(_candidates(network, seen, keep_float, include_linear))
    bits = resolve_bits("weight_bits", weight_bits, layers)
    input_bits = resolve_bits("activation_bits", activation_bits, layers)
    possible = layers or _candidates(network, seen, (), include_linear)
    if not possible and method != "float" and weight_bits != 32:
        raise ConversionError(
            "there is no layer to quantise: the first convolution stays float",
            "include_linear=True adds the linear layers.",
        )
    build = METHODS[method].load()
    quantiser = activation_name(method, activation)
    replaced: dict[nn.Module, nn.Module] = {}
    for name, layer in layers.items():
        if bits[name] == 32 or method == "float":
            continue
        _check_padding(name, layer)
        new = build(layer, bits[name], keep_weights=keep_weights, spread=spread)
        new.activation = activation_quantizer(quantiser, input_bits[name])
        replaced[layer] = new.to(next(layer.parameters()).device)
    replaced |= _state_norms(network, seen, replaced, norm)
    _add_missing_norms(seen, replaced, norm)
    if quantiser is not None and ACTIVATIONS[quantiser].details.get("signed"):
        replaced |= _without_relus(network, seen, replaced)
    _replace_everywhere(network, replaced)


def resolve_bits(field: str, bits: Bits, layers: Iterable[str]) -> dict[str, int]:
    """Bits of every layer: an exact name wins, then the longest pattern that matches, then 32."""
    names = list(layers)
    if _is_number(bits):
        return dict.fromkeys(names, bits)
    if not isinstance(bits, Mapping) or not all(map(_is_number, bits.values())):
        raise ConfigError(
            f"{field} must be a number of bits, or a map from layer names to such; got {bits!r}"
        )
    for key in bits:
        if not isinstance(key, str):
            raise ConfigError(
                f"{field}: the name of a layer must be a string; got {key!r}", f"write '{key}'."
            )
        if not any(fnmatchcase(name, key) for name in names):
            message = f"{field}: no quantisable layer is named {key!r}"
            raise ConfigError(message, nearest(key, names))
    by_length = sorted(bits, key=lambda key: (-len(key), key))
    resolved = {}
    for name in names:
        keys = [key for key in by_length if fnmatchcase(name, key)]
        resolved[name] = bits[name] if name in bits else bits[keys[0]] if keys else 32
    return resolved


def _candidates(
    network: nn.Module,
    seen: Observation,
    keep_float: Collection[str] | None,
    include_linear: bool,
) -> list[tuple[str, nn.Module]]:
    kinds = (nn.Conv2d, nn.Linear) if include_linear else (nn.Conv2d,)
    names = {module: name for name, module in network.named_modules()}
    convolutions = [layer for layer in seen.layers if isinstance(layer, nn.Conv2d)]
    first = convolutions[0] if convolutions else None
    found = [
        (names[layer], layer)
        for layer in seen.layers
        if isinstance(layer, kinds) and not isinstance(layer, LowBitLayer) and layer is not first
    ]
    kept = getattr(network, "keep_float", ()) if keep_float is None else keep_float
    for pattern in kept:
        if not any(fnmatchcase(name, pattern) for name in names.values()):
            hint = nearest(pattern, [name for name, _ in found])
            raise ConfigError(f"keep_float: no layer is named {pattern!r}", hint)
    return [(name, layer) for name, layer in found if not any(fnmatchcase(name, p) for p in kept)]


def _is_number(bits: object) -> TypeGuard[int]:
    return isinstance(bits, int) and not isinstance(bits, bool)


def _check_float(network: nn.Module) -> None:
    for name, module in network.named_modules():
        if isinstance(module, LowBitLayer):
            raise ConversionError(
                f"the network is quantised already: {name or 'it'} is a {type(module).__name__}",
                "give the float network, with the bits of every layer at once.",
            )


def _check_padding(name: str, layer: nn.Module) -> None:
    padding = getattr(layer, "padding_mode", "zeros")
    if padding != "zeros":
        raise ConversionError(
            f"{name} pads with {padding!r}; only 'zeros' can be quantised",
            f"keep it float: keep_float=[{name!r}].",
        )


def _state_norms(
    network: nn.Module,
    seen: Observation,
    replaced: Mapping[nn.Module, nn.Module],
    config: NormConfig,
) -> dict[nn.Module, nn.Module]:
    """A state BN for each BN, tied in `paper` mode to the layer that feeds it."""
    first_quantised = next(
        (i for i, layer in enumerate(seen.layers) if layer in replaced), len(seen.layers)
    )
    soft = any(layer.soft for layer in replaced.values() if isinstance(layer, LowBitLayer))
    names = {module: name for name, module in network.named_modules()}
    norms: dict[nn.Module, nn.Module] = {}
    for norm, source in seen.norm_sources.items():
        layer = replaced.get(source.layer) if source is not None else None
        untouched = seen.before_layer[norm] <= first_quantised
        # Where nothing quantised comes before a BN, or the weight of training is that of
        # inference, y_q is y_c and one set of statistics serves.
        same = untouched or (config.mode == "paper" and source is not None and layer is None)
        same = same or not soft
        if config.mode == "paper" and not same and layer is None:
            raise ConversionError(
                f"state BN {names[norm]!r} is not fed by one convolution through element-wise "
                "steps, so y_q cannot be formed",
                "use norm.mode: calibrate.",
            )
        new = StateBatchNorm2d.from_batch_norm(norm, "off" if same else config.mode, config.every)
        new.eps, new.momentum = config.eps, config.momentum
        norms[norm] = new
        if isinstance(layer, LowBitLayer) and source is not None and new.mode == "paper":
            if layer.link is not None:
                raise ConversionError(
                    f"{names[source.layer]!r} feeds more than one BN, so y_q has no single place",
                    "use norm.mode: calibrate.",
                )
            layer.link = NormLink(new, source.between)
    return norms


def _add_missing_norms(
    seen: Observation, replaced: Mapping[nn.Module, nn.Module], config: NormConfig
) -> None:
    """Give a layer that no BN follows a state BN, or a scale at the end: else 1 bit blows up."""
    fed = {source.layer for source in seen.norm_sources.values() if source is not None}
    for old, new in replaced.items():
        if not isinstance(new, LowBitLayer) or old in fed or _feeds_norm_later(seen, old):
            continue
        reference = new.trained
        mode = config.mode if new.soft else "off"
        if old is seen.layers[-1] or isinstance(old, nn.Linear):
            fan_in = new.weight_shape[1:].numel()
            scale = torch.full((1,), fan_in**-0.5)
            new.output_scale = nn.Parameter(scale.to(reference.device, reference.dtype))
        else:
            norm = StateBatchNorm2d(
                new.weight_shape[0],
                mode,
                every=config.every,
                eps=config.eps,
                momentum=config.momentum,
            )
            new.norm = norm.to(reference.device, reference.dtype)
            if mode == "paper":
                new.link = NormLink(new.norm)


def _feeds_norm_later(seen: Observation, layer: nn.Module) -> bool:
    """Whether a BN runs between this layer and the next one, behind a step such as pooling."""
    position = seen.layers.index(layer) + 1
    return any(
        source is None and seen.before_layer[norm] == position
        for norm, source in seen.norm_sources.items()
    )


class NoRelu(nn.Identity):
    """Replaces a ReLU before a sign, which needs the negative numbers too."""


def _without_relus(
    network: nn.Module, seen: Observation, replaced: Mapping[nn.Module, nn.Module]
) -> dict[nn.Module, nn.Module]:
    """The ReLUs before layers that take signs of their input, each with its replacement.

    The networks of these methods have the sign in place of the ReLU.
    """
    names = {module: name for name, module in network.named_modules()}
    found: dict[nn.Module, nn.Module] = {}
    for old, new in replaced.items():
        relu = seen.relu_before.get(old)
        if not isinstance(new, LowBitLayer) or new.activation is None or relu is None:
            continue
        if not isinstance(relu, nn.Module):
            raise ConversionError(
                f"{names[old]!r} would take the sign of what a relu() left, which is always 1",
                "make it an nn.ReLU module, which can be removed, or use activation: dorefa.",
            )
        found[relu] = NoRelu()
    return found


def _replace_everywhere(network: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> None:
    for name, module in list(network.named_modules(remove_duplicate=False)):
        if name and module in replaced:
            owner, _, key = name.rpartition(".")
            setattr(network.get_submodule(owner), key, replaced[module])
