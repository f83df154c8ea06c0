"""Watching one forward pass: which layers run, in which order, and what feeds each BN.

Module names do not show which convolution a BN belongs to; following the tensors does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from slb_autotune.errors import ConversionError

_ELEMENTWISE_MODULES = (
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.PReLU,
    nn.LeakyReLU,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.SiLU,
    nn.Mish,
    nn.GELU,
    nn.Sigmoid,
    nn.Tanh,
    nn.Softplus,
)
_ELEMENTWISE_FUNCTIONS = (
    F.relu,
    F.relu6,
    F.leaky_relu,
    F.hardtanh,
    F.hardswish,
    F.elu,
    F.silu,
    F.gelu,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.clamp,
    Tensor.relu,
    Tensor.sigmoid,
    Tensor.tanh,
    Tensor.clamp,
)

_RELU_MODULES = (nn.ReLU, nn.ReLU6)
_RELU_FUNCTIONS = (F.relu, F.relu6, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_)
_KEEP_SIGN_MODULES = (
    nn.Identity,
    nn.Flatten,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Dropout,
)
_KEEP_SIGN_FUNCTIONS = (
    F.max_pool2d,
    F.avg_pool2d,
    F.adaptive_avg_pool2d,
    torch.flatten,
    Tensor.flatten,
)


@dataclass(frozen=True)
class Replay:
    """An element-wise function with its settings, ready to be applied to another tensor."""

    function: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]

    def __call__(self, y: Tensor) -> Tensor:
        """Apply it to `y`."""
        return self.function(y, *self.arguments, **dict(self.keywords))


@dataclass(frozen=True)
class Source:
    """The layer that a tensor comes from, through element-wise steps alone."""

    layer: nn.Module
    between: tuple[Callable[[Tensor], Tensor], ...] = ()


@dataclass
class Observation:
    """What one forward pass showed, in the order of the calls."""

    layers: list[nn.Module] = field(default_factory=list)
    norm_sources: dict[nn.BatchNorm2d, Source | None] = field(default_factory=dict)
    before_layer: dict[nn.BatchNorm2d, int] = field(default_factory=dict)
    # The ReLU that feeds a layer, directly or through pooling; True where it is not a module.
    relu_before: dict[nn.Module, nn.Module | bool] = field(default_factory=dict)
    # How often each weight of a layer was used, in all its calls.
    positions: dict[nn.Module, int] = field(default_factory=dict)


class _Watch(TorchFunctionMode):
    """Follows tensors from layers to BNs, through modules (by hooks) and functions (as a mode)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.seen = Observation()
        # The tensor is kept beside its source: a freed tensor's id may be given to another.
        self.sources: dict[int, tuple[Tensor, Source]] = {}
        self.entering: list[Source | None] = []
        self.positive: dict[int, tuple[Tensor, nn.Module | bool]] = {}
        self.handles = [
            handle
            for module in network.modules()
            for handle in (
                module.register_forward_pre_hook(self.enter),
                module.register_forward_hook(self.leave),
            )
        ]

    def source_of(self, value: Any) -> Source | None:
        found = self.sources.get(id(value))
        return found[1] if found is not None else None

    def note(self, value: Any, source: Source | None) -> None:
        if isinstance(value, Tensor):
            if source is None:
                self.sources.pop(id(value), None)
            else:
                self.sources[id(value)] = (value, source)

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        source = self.source_of(args[0]) if args else None
        self.entering.append(source)
        if isinstance(module, nn.Conv2d | nn.Linear) and args and id(args[0]) in self.positive:
            self.seen.relu_before.setdefault(module, self.positive[id(args[0])][1])
        if isinstance(module, nn.BatchNorm2d):
            known = module in self.seen.norm_sources
            self.seen.norm_sources[module] = None if known else source
            self.seen.before_layer.setdefault(module, len(self.seen.layers))

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        source = self.entering.pop()
        if isinstance(module, _RELU_MODULES):
            self.positive[id(output)] = (output, module)
        elif isinstance(module, _KEEP_SIGN_MODULES) and id(args[0]) in self.positive:
            self.positive[id(output)] = (output, self.positive[id(args[0])][1])
        if isinstance(module, nn.Conv2d | nn.Linear):
            if module not in self.seen.layers:
                self.seen.layers.append(module)
            uses = output.numel() // module.weight.shape[0]
            self.seen.positions[module] = self.seen.positions.get(module, 0) + uses
            self.note(output, Source(module))
        elif isinstance(module, _ELEMENTWISE_MODULES):
            longer = Source(source.layer, (*source.between, module)) if source else None
            self.note(output, longer)
        elif isinstance(module, nn.BatchNorm2d):
            self.note(output, None)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        source = self.source_of(args[0]) if args else None
        output = func(*args, **keywords)
        self.positive.pop(id(output), None)
        if func in _RELU_FUNCTIONS:
            self.positive[id(output)] = (output, True)
        elif func in _KEEP_SIGN_FUNCTIONS and id(args[0]) in self.positive:
            self.positive[id(output)] = (output, self.positive[id(args[0])][1])
        if source is not None and func in _ELEMENTWISE_FUNCTIONS:
            others = (*args[1:], *keywords.values())
            if not any(isinstance(value, Tensor) for value in others):
                step = Replay(func, args[1:], tuple(keywords.items()))
                self.note(output, Source(source.layer, (*source.between, step)))
        elif isinstance(output, Tensor) and getattr(func, "__name__", "").endswith("_"):
            self.note(output, None)
        return output


@torch.no_grad()
def watch(network: nn.Module, example_input: Tensor | None = None) -> Observation:
    """Run `network` once in eval mode and return what ran."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        if example_input is not None:
            try:
                return _run(network, example_input)
            except RuntimeError as error:
                raise ConversionError(
                    f"the network does not take images of shape {tuple(example_input.shape[1:])}: "
                    f"{str(error).splitlines()[0]}",
                    "choose a network for such images.",
                ) from error
        return _run_guessed(network)
    finally:
        for module, training in modes.items():
            module.training = training


def _run(network: nn.Module, example: Tensor) -> Observation:
    watcher = _Watch(network)
    try:
        with watcher:
            network(example)
    finally:
        for handle in watcher.handles:
            handle.remove()
    return watcher.seen


def _run_guessed(network: nn.Module) -> Observation:
    """Try the usual image sizes, with the channels that convolutions in the module tree take."""
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    if not convolutions:
        raise ConversionError("the network has no Conv2d", "nothing in it can be quantised.")
    weight = convolutions[0].weight
    channels = dict.fromkeys(layer.in_channels for layer in convolutions)
    for size, count in product((32, 224), channels):
        example = torch.zeros(1, count, size, size, device=weight.device, dtype=weight.dtype)
        try:
            return _run(network, example)
        except (RuntimeError, ValueError, AssertionError):
            continue
    raise ConversionError(
        "the network runs neither on images of 32 nor of 224 pixels a side",
        "pass example_input, a batch that it takes.",
    )
