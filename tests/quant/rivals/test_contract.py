"""What every method must keep: one contract, whatever its formula."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from slb_autotune import data
from slb_autotune.config.methods import METHODS, activation_widths
from slb_autotune.config.trial import TrialConfig
from slb_autotune.cost import estimate, profile, size_bytes
from slb_autotune.errors import ConfigError
from slb_autotune.export.format import read_packed
from slb_autotune.export.packed import load_packed, save_packed
from slb_autotune.quant import LowBitLayer, quantize, set_temperature
from slb_autotune.quant.layers import low_bit_layers
from slb_autotune.training.loop import train
from tests.builders import tiny_config

NAMES = [name for name in METHODS if name != "float"]
BITS = [(name, bits) for name in NAMES for bits in METHODS[name].details["weight_bits"]]
PAIRS = [
    (name, weights, inputs)
    for name, weights in BITS
    if weights <= 2
    for inputs in (*activation_widths(name, "method"), 32)
    if inputs in (1, 2, 32)
]

# Training takes time: there the fewest and the most bits of these stand for a method.
FEWEST = [next(pair for pair in PAIRS if pair[0] == name) for name in NAMES]
MOST = [max(pair for pair in PAIRS if pair[0] == name) for name in NAMES]
ENDS = list(dict.fromkeys(FEWEST + MOST))


class Grouped(nn.Module):
    """A user's own network: groups, a bias, a stride, a shortcut, and modules out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 10)
        self.tail = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=True)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.body = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=4, bias=False)
        self.body_norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body_norm(self.body(self.relu(self.stem(x))))
        x = self.norm(self.tail(x)) + x
        return self.head(x.mean(dim=(2, 3)))


def grouped(method: str, weights: int, inputs: int = 32) -> nn.Module:
    torch.manual_seed(0)
    network = quantize(Grouped(), weights, inputs, method, torch.zeros(1, 1, 8, 8))
    set_temperature(network, 3.0, 0.5)
    return network


def step(network: nn.Module, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, 1, 8, 8, generator=generator)
    y = torch.randint(10, (16,), generator=generator)
    loss = F.cross_entropy(network.train()(x), y)
    loss.backward()
    return loss


def layers(network: nn.Module) -> list[LowBitLayer]:
    return list(low_bit_layers(network).values())


def low_bit_config(method: str, weights: int, inputs: int, **changes: object) -> TrialConfig:
    network = {"network.name": f"{__name__}:Grouped", "network.width": None}
    bits = {"weight_bits": weights, "activation_bits": inputs}
    return tiny_config(method=method, **network, **bits, **changes)


@pytest.mark.parametrize(("method", "bits"), BITS)
def test_weights_are_in_the_declared_set(method: str, bits: int) -> None:
    network = grouped(method, bits)
    step(network)
    for layer in layers(network.eval()):
        codes, stored, weight = layer.codes(), layer.stored(), layer.quantized_weight()
        assert codes.dtype == torch.uint8
        assert int(codes.max()) < 2**bits
        assert weight.shape == layer.weight_shape
        assert weight.dtype == torch.float32
        # Every level that a place may have: what each code would be there.
        levels = torch.stack(
            [layer.decode(torch.full_like(codes, code), stored) for code in range(2**bits)]
        )
        assert torch.equal(levels.gather(0, codes.long().unsqueeze(0))[0], weight)
        assert weight.isfinite().all()


@pytest.mark.parametrize(("method", "bits"), BITS)
def test_training_uses_the_weight_of_inference_unless_it_is_soft(method: str, bits: int) -> None:
    network = grouped(method, bits)
    step(network)
    network.eval()
    for layer in layers(network):
        same = torch.allclose(layer.continuous_weight(), layer.quantized_weight(), atol=1e-5)
        assert same != layer.soft


@pytest.mark.parametrize(("method", "weights", "inputs"), PAIRS)
def test_gradients_are_finite_and_reach_every_parameter(
    method: str, weights: int, inputs: int
) -> None:
    network = grouped(method, weights, inputs)
    step(network)
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
    for layer in layers(network):
        assert layer.trained.grad is not None
        assert layer.trained.grad.abs().sum() > 0


@pytest.mark.parametrize(("method", "weights", "inputs"), PAIRS)
def test_state_dict_round_trip(method: str, weights: int, inputs: int) -> None:
    network = grouped(method, weights, inputs)
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.1)
    step(network)
    optimizer.step()
    torch.manual_seed(7)
    other = quantize(Grouped(), weights, inputs, method, torch.zeros(1, 1, 8, 8))
    other.load_state_dict(network.state_dict())
    x = torch.randn(4, 1, 8, 8)
    assert torch.equal(network.eval()(x), other.eval()(x))
    set_temperature(other, 3.0, 0.5)
    one, two = step(network, 1), step(other, 1)
    assert torch.equal(one, two)
    for mine, its in zip(network.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize(("method", "weights", "inputs"), ENDS)
def test_packed_file_is_bit_identical_and_as_large_as_said(
    method: str, weights: int, inputs: int, tmp_path: Path
) -> None:
    config = low_bit_config(method, weights, inputs)
    result = train(config)
    info = data.info(config.data)
    path = save_packed(result.network, config, tmp_path / "net.slb", info, result.metrics)
    x = torch.randn(8, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(load_packed(path, trust_network=True)(x), result.network.eval()(x))
    payload = read_packed(path).payload_bytes
    assert payload == result.metrics["size_bytes"] == estimate(config, info).size_bytes
    assert payload == size_bytes(profile(result.network, (1, 8, 8)))


@pytest.mark.parametrize(("method", "weights", "inputs"), FEWEST)
def test_resumed_training_is_bit_identical(
    method: str, weights: int, inputs: int, tmp_path: Path
) -> None:
    config = low_bit_config(method, weights, inputs, epochs=2)
    whole = train(config)

    class Stopped(Exception):
        pass

    def stop(**row: float) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        train(config, stop, folder=tmp_path)
    resumed = train(config, folder=tmp_path)
    ours = whole.history.drop(columns="seconds")
    assert ours.equals(resumed.history.drop(columns="seconds"))
    states = whole.network.state_dict(), resumed.network.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("method", NAMES)
def test_copies_and_other_precisions(method: str) -> None:
    bits = METHODS[method].details["weight_bits"][0]
    network = copy.deepcopy(grouped(method, bits)).double()
    loss = F.cross_entropy(
        network(torch.randn(8, 1, 8, 8, dtype=torch.float64)), torch.zeros(8, dtype=torch.long)
    )
    loss.backward()
    assert all(layer.trained.grad.dtype == torch.float64 for layer in layers(network))


@pytest.mark.parametrize("method", NAMES)
def test_a_width_that_the_method_does_not_have_is_refused(method: str) -> None:
    known = METHODS[method].details["weight_bits"]
    missing = next(bits for bits in (8, 2, 1) if bits not in known) if len(known) < 5 else 5
    with pytest.raises(ConfigError):
        low_bit_config(method, missing, 32)


@pytest.mark.parametrize("method", NAMES)
def test_every_method_names_its_paper(method: str) -> None:
    assert METHODS[method].details["paper"].endswith(")")
