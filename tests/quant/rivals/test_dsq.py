"""DSQ against the formulas of its paper, written out number by number."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from slb_autotune.cost import profile, size_bytes
from slb_autotune.quant import quantize
from slb_autotune.quant.rivals.base import RoundedLinear
from slb_autotune.quant.rivals.dsq import DsqActivation, DsqWeight, soft_round
from tests.builders import tiny_network


def slow(x: float, low: float, high: float, alpha: float, bits: int) -> tuple[float, float]:
    """(Q_S, Q) of the paper."""
    n = 2**bits - 1
    D = (high - low) / n
    if x < low:
        return low, low
    if x > high:
        return high, high
    k = math.log(2 / alpha - 1) / D
    s = 1 / (1 - alpha)
    assert s == pytest.approx(1 / math.tanh(0.5 * k * D))  # the paper's two forms of s
    i = min(math.floor((x - low) / D), n - 1)
    phi = s * math.tanh(k * (x - (low + (i + 0.5) * D)))
    sgn = 1 if phi >= 0 else -1
    return low + D * (i + (phi + 1) / 2), low + D * (i + (sgn + 1) / 2)


def slow_gradient(values: list[float], at: int, x: float, bits: int) -> float:
    """dQ_S by a central difference, for x (0), l, u or alpha (1, 2, 3)."""
    sides = []
    for shift in (1e-6, -1e-6):
        moved = [x, *values]
        moved[at] += shift
        sides.append(slow(*moved, bits)[0])
    return (sides[0] - sides[1]) / 2e-6


def numbers(*shape: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(*shape, dtype=torch.float64)


def learned(*values: float) -> list[Tensor]:
    return [torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in values]


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.45])
def test_value_is_hard_and_gradient_soft(bits: int, alpha: float) -> None:
    x = numbers(40).requires_grad_()
    values = [-1.3, 0.9, alpha]
    low, high, a = learned(*values)
    out = soft_round(x, low, high, a, bits, count=40)
    expected = [slow(v, *values, bits)[1] for v in x.tolist()]
    assert out.tolist() == pytest.approx(expected)
    g = torch.randn_like(x)
    out.backward(g)
    pulls = list(zip(x.tolist(), g.tolist(), strict=True))
    to_x = [pull * slow_gradient(values, 0, v, bits) for v, pull in pulls]
    assert x.grad.tolist() == pytest.approx(to_x, rel=1e-4, abs=1e-7)
    scale = 1 / math.sqrt(40 * (2**bits - 1))
    for at, parameter in enumerate((low, high, a), 1):
        total = sum(pull * slow_gradient(values, at, v, bits) for v, pull in pulls)
        assert parameter.grad.item() == pytest.approx(scale * total, rel=1e-4, abs=1e-7)
    assert any(v < -1.3 for v in x.tolist())
    assert any(v > 0.9 for v in x.tolist())


def test_the_gradient_is_straight_in_the_range_at_a_large_alpha_and_a_step_at_a_small_one() -> (
    None
):
    slopes = {}
    for alpha in (0.5, 0.001):
        x = torch.linspace(0.0, 1.0, 101, dtype=torch.float64).requires_grad_()
        soft_round(x, *learned(0.0, 1.0, alpha), bits=1, count=1).sum().backward()
        slopes[alpha] = x.grad
    assert slopes[0.5].max() / slopes[0.5].min() < 1.5
    assert slopes[0.001].max() / slopes[0.001].min() > 100


@pytest.mark.parametrize(("alpha", "held"), [(-1.0, 0.001), (0.9, 0.5)])
def test_alpha_outside_its_interval_counts_as_the_end_and_comes_back(
    alpha: float, held: float
) -> None:
    gradients = []
    for start in (alpha, held):
        x = numbers(30).requires_grad_()
        a = torch.tensor([start], dtype=torch.float64, requires_grad=True)
        out = soft_round(x, *learned(-1.0, 1.0), a, bits=2, count=30)
        gradients.append(torch.autograd.grad(out.sum(), x)[0])
    assert torch.equal(*gradients)
    moved = []
    for sign in (1, -1):
        x = numbers(30)
        a = torch.tensor([alpha], dtype=torch.float64, requires_grad=True)
        out = soft_round(x, *learned(-1.0, 1.0), a, bits=2, count=30)
        (sign * out.sum()).backward()
        moved.append(a.grad.item())
    assert 0 in moved
    # What is left moves alpha back: up (a negative gradient) from below, down from above.
    (left,) = [v for v in moved if v != 0]
    assert math.copysign(1, left) == (-1 if alpha < held else 1)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_weight_starts_at_three_deviations_and_its_codes_decode_to_it(bits: int) -> None:
    W = numbers(6, 3, 3, 3)
    W[0, 0, 0, 0] = 9.0  # far outside; the other side ends at its smallest weight
    quantiser = DsqWeight(bits, W.shape).double()
    with torch.no_grad():
        quantiser.start(W)
    flat = W.flatten().tolist()
    mean = sum(flat) / len(flat)
    std = math.sqrt(sum((v - mean) ** 2 for v in flat) / len(flat))
    low, high = max(min(flat), mean - 3 * std), min(max(flat), mean + 3 * std)
    assert high < 9
    assert low == min(flat)
    stored, codes = quantiser.stored(W), quantiser.codes(W)
    assert [float(stored[name]) for name in ("lower", "upper")] == pytest.approx([low, high])
    expected = [slow(v, low, high, 0.2, bits)[1] for v in flat]
    assert quantiser.decode(codes, stored).flatten().tolist() == pytest.approx(expected)
    assert torch.equal(quantiser.decode(codes, stored), quantiser(W))


def test_activation_takes_its_range_from_the_first_batch_of_training_alone() -> None:
    x = numbers(8, 4).abs()
    quantiser = DsqActivation(2).double()
    quantiser.eval()(x)
    assert quantiser.upper.item() == 1
    quantiser.train()(x)
    assert quantiser.lower.item() == float(x.min())  # behind a ReLU: 0
    upper = quantiser.upper.item()
    assert upper == pytest.approx(min(float(x.max()), float(x.mean() + 3 * x.std(correction=0))))
    assert quantiser(x * 9).max().item() == pytest.approx(upper)
    expected = [slow(v, float(x.min()), upper, 0.2, 2)[1] for v in x.flatten().tolist()]
    assert quantiser(x).flatten().tolist() == pytest.approx(expected)
    signed = DsqActivation(1).double().train()
    assert signed(x - 1).min() < 0


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_range_that_has_closed_gives_finite_numbers_and_opens_again(bits: int) -> None:
    x = torch.linspace(-1, 1, 21, dtype=torch.float64)
    low, high, alpha = learned(0.5, -0.5, 0.2)
    out = soft_round(x, low, high, alpha, bits, count=21)
    (out - x).square().sum().backward()
    assert out.isfinite().all()
    assert high.grad.item() < 0 < low.grad.item()


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_zero_weights_and_one_weight_a_filter(bits: int) -> None:
    for layer in (nn.Linear(1, 3, bias=False), nn.Conv2d(3, 3, 1, groups=3)):
        nn.init.zeros_(layer.weight)
        low = DsqWeight.from_float(layer, bits)
        low.continuous_weight().sum().backward()
        assert low.trained.grad.isfinite().all()
        assert low.quantized_weight().abs().max() < 1e-6
    assert isinstance(DsqWeight.from_float(nn.Linear(3, 2), 2), RoundedLinear)


def test_size_by_hand() -> None:
    network = quantize(tiny_network(), 2, 2, "dsq", torch.zeros(1, 1, 8, 8))
    # float: stem 27, head 60, two BNs of 2 numbers a channel; low-bit: 135 weights of 2 bits,
    # l and u of weights and of activations; alpha is for training only.
    assert size_bytes(profile(network, (1, 8, 8))) == 4 * (27 + 60 + 6 + 10) + 34 + 4 * (2 + 2)
