"""Quantization Networks against the formulas of the paper, written out number by number."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from slb_autotune.cost import profile, size_bytes
from slb_autotune.quant import quantize, set_temperature
from slb_autotune.quant.rivals.base import RoundedLinear
from slb_autotune.quant.rivals.sq import SqActivation, SqWeight, cluster_borders
from slb_autotune.quant.states import network_state
from tests.builders import tiny_network


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


def slow(
    x: float, alpha: float, beta: float, biases: list[float], gap: int, T: float | None
) -> float:
    """Eq. 7 of the paper, or where T is None eq. 12."""
    offset = gap * len(biases) / 2 if gap == 2 else 0
    steps = [sigmoid(T * (beta * x - b)) if T else float(beta * x >= b) for b in biases]
    return alpha * (sum(gap * step for step in steps) - offset)


def slow_k_means(values: list[float], count: int) -> list[float]:
    """Lloyd's rounds from evenly spread centres, value by value."""
    low, high = min(values), max(values)
    centres = [low + (high - low) * (i + 0.5) / count for i in range(count)]
    for _ in range(200):
        groups: list[list[float]] = [[] for _ in centres]
        for v in values:
            groups[min(range(count), key=lambda i: abs(v - centres[i]))].append(v)
        centres = [sum(g) / len(g) if g else c for g, c in zip(groups, centres, strict=True)]
    return [(a + b) / 2 for a, b in pairwise(centres)]


def numbers(*shape: int) -> Tensor:
    torch.manual_seed(2)
    return torch.randn(*shape, dtype=torch.float64)


def started(bits: int, W: Tensor) -> SqWeight:
    quantiser = SqWeight(bits, W.shape).to(W.dtype)
    with torch.no_grad():
        quantiser.start(W)
    return quantiser


@pytest.mark.parametrize("count", [2, 4, 8])
def test_borders_are_those_of_k_means(count: int) -> None:
    x = numbers(300)
    assert cluster_borders(x, count).tolist() == pytest.approx(slow_k_means(x.tolist(), count))


def test_borders_of_few_and_of_equal_values_rise_and_are_finite() -> None:
    assert cluster_borders(torch.tensor([0.0, 0.0, 1.0]), 8).diff().min() >= 0
    assert cluster_borders(torch.full((5,), 3.0), 4).tolist() == [3.0] * 3


@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("T", [1.0, 3.0, 50.0])
def test_weight_of_training(bits: int, T: float) -> None:
    W = numbers(4, 3, 3, 3)
    quantiser = started(bits, W)
    quantiser.temperature = T
    n = 2**bits - 1
    beta = 5 * n / 4 / max(abs(v) for v in W.flatten().tolist())
    scaled = (W * beta).flatten().tolist()
    biases = [0.0] if bits == 1 else slow_k_means(scaled, n + 1)
    assert quantiser.beta.item() == pytest.approx(beta)
    assert quantiser.alpha.item() == pytest.approx(1 / beta)
    assert quantiser.biases.tolist() == pytest.approx(biases)
    expected = [slow(v, 1 / beta, beta, biases, 2, T) for v in W.flatten().tolist()]
    assert quantiser(W).flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_weight_of_inference(bits: int) -> None:
    W = numbers(4, 3, 3, 3)
    quantiser = started(bits, W)
    alpha, beta = quantiser.alpha.item(), quantiser.beta.item()
    expected = [
        slow(v, alpha, beta, quantiser.biases.tolist(), 2, None) for v in W.flatten().tolist()
    ]
    codes, stored = quantiser.codes(W), quantiser.stored(W)
    weight = quantiser.decode(codes, stored)
    assert weight.flatten().tolist() == pytest.approx(expected)
    assert sum(t.numel() for t in stored.values()) == 1
    n = 2**bits - 1
    levels = sorted({round(v / alpha) for v in weight.flatten().tolist()})
    assert levels == list(range(-n, n + 1, 2))
    # The soft weight ends there: a value that is not at a step is on its level at a large T.
    quantiser.temperature = 1e7
    assert torch.allclose(quantiser(W), weight, atol=1e-6)


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_a_value_at_a_step_is_above_it(bits: int) -> None:
    quantiser = SqWeight(bits, torch.Size([2]))
    quantiser.biases.copy_(torch.arange(2**bits - 1))
    assert quantiser.codes(torch.tensor([0.0, -0.1])).tolist() == [1, 0]


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_gradients_of_weights_are_the_true_ones(bits: int) -> None:
    W = numbers(3, 4)
    quantiser = started(bits, W)
    for T in (1.0, 7.0):
        quantiser.temperature = T

        def soft(weight: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
            parameters = {"alpha": alpha, "beta": beta}
            return torch.func.functional_call(quantiser, parameters, (weight,))

        inputs = (W, quantiser.alpha.detach(), quantiser.beta.detach())
        assert torch.autograd.gradcheck(soft, tuple(t.clone().requires_grad_() for t in inputs))


@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("T", [1.0, 3.0, 50.0])
def test_activations(bits: int, T: float) -> None:
    x = numbers(5, 2, 4, 4).abs().requires_grad_()
    quantiser = SqActivation(bits).double().train()
    quantiser.temperature = T
    n = 2**bits - 1
    beta = 5 * n / 4 / x.max().item()
    biases = slow_k_means((x * beta).flatten().tolist(), n + 1)
    soft = quantiser(x)
    flat = x.flatten().tolist()
    expected = [slow(v, 1 / beta, beta, biases, 1, T) for v in flat]
    assert soft.flatten().tolist() == pytest.approx(expected)
    hard = [slow(v, 1 / beta, beta, biases, 1, None) for v in flat]
    with network_state(quantiser, "discrete"):
        assert quantiser(x).flatten().tolist() == pytest.approx(hard)
    assert quantiser.eval()(x).flatten().tolist() == pytest.approx(hard)
    with network_state(quantiser, "continuous"):
        assert quantiser(x).flatten().tolist() == pytest.approx(expected)
    # The slope, and with it the gradients of x and beta, are those at a T of at most 4.
    g = torch.randn_like(x)
    soft.backward(g)
    steep = min(T, 4.0)
    parts = [[sigmoid(steep * (beta * v - b)) for b in biases] for v in flat]
    slopes = [steep * sum(p * (1 - p) for p in part) for part in parts]  # alpha beta is 1
    pulls = g.flatten().tolist()
    to_x = [slope * pull for slope, pull in zip(slopes, pulls, strict=True)]
    assert x.grad.flatten().tolist() == pytest.approx(to_x)
    to_beta = sum(v * pull / beta for v, pull in zip(flat, to_x, strict=True))
    assert quantiser.beta.grad.item() == pytest.approx(to_beta)
    to_alpha = sum(v * beta * pull for v, pull in zip(expected, pulls, strict=True))
    assert quantiser.alpha.grad.item() == pytest.approx(to_alpha)
    assert not quantiser.biases.requires_grad


def test_the_first_batch_of_training_sets_the_activation_and_no_other() -> None:
    quantiser = SqActivation(2)
    x = numbers(8, 4).abs().float()
    quantiser.eval()(x)
    assert quantiser.beta.item() == 1.0
    quantiser.train()(x)
    before = {name: value.clone() for name, value in quantiser.state_dict().items()}
    quantiser(3 * x)
    other = SqActivation(2)
    other.load_state_dict(before)
    other.train()(3 * x)
    for name, value in before.items():
        assert torch.equal(quantiser.state_dict()[name], value)
        assert torch.equal(other.state_dict()[name], value)


def test_a_small_temperature_counts_as_1() -> None:
    W = numbers(4, 5)
    quantiser, activation = started(2, W), SqActivation(2).double()
    outputs = []
    for T in (1e-2, 1.0):
        quantiser.temperature = activation.temperature = T
        outputs.append((quantiser(W), activation(W)))
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert torch.equal(outputs[0][1], outputs[1][1])


def test_the_largest_temperature_overflows_nowhere() -> None:
    network = quantize(tiny_network(), 2, 2, "sq", torch.zeros(1, 1, 8, 8)).train()
    set_temperature(network, 1e9)
    network(torch.randn(4, 1, 8, 8)).sum().backward()
    assert all(p.grad.isfinite().all() for p in network.parameters() if p.grad is not None)


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_zero_weights_and_one_weight_a_filter(bits: int) -> None:
    for layer in (nn.Linear(1, 3, bias=False), nn.Conv2d(3, 3, 1, groups=3)):
        nn.init.zeros_(layer.weight)
        low = SqWeight.from_float(layer, bits)
        low.continuous_weight().sum().backward()
        assert low.trained.grad.isfinite().all()
        assert low.quantized_weight().abs().max() < 1e-6
    assert isinstance(SqWeight.from_float(nn.Linear(3, 2), 2), RoundedLinear)


def test_size_by_hand() -> None:
    network = quantize(tiny_network(), 2, 2, "sq", torch.zeros(1, 1, 8, 8))
    # float: stem 27, head 60, two BNs of 2 numbers a channel; low-bit: 135 weights of 2 bits and
    # their alpha; alpha, beta and three biases of the activations.
    assert size_bytes(profile(network, (1, 8, 8))) == 4 * (27 + 60 + 6 + 10) + 34 + 4 * (1 + 5)
