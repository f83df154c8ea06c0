"""LSQ against the formulas of its paper, written out number by number."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from slb_autotune.cost import profile, size_bytes
from slb_autotune.quant import quantize
from slb_autotune.quant.layers import low_bit_layers
from slb_autotune.quant.rivals.base import RoundedConv2d, RoundedLinear
from slb_autotune.quant.rivals.lsq import LsqActivation, LsqWeight
from tests.builders import tiny_network


def levels(bits: int) -> tuple[int, int]:
    """(-Q_N, Q_P) of weights."""
    return (-1, 1) if bits == 1 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def slow(v: float, s: float, low: int, high: int, binary: bool = False) -> tuple[float, ...]:
    """(q, dq/dv, dq/ds), the last without the gradient scale."""
    ratio = v / s
    if ratio <= low:
        return s * low, 0.0, float(low)
    if ratio >= high:
        return s * high, 0.0, float(high)
    level = (1 if v >= 0 else -1) if binary else round(ratio)
    return s * level, 1.0, level - ratio


def weights(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_weights_and_gradients_are_the_papers(bits: int) -> None:
    W = weights(4, 3, 3, 3)
    W.view(-1)[:2] = torch.tensor([60.0, -60.0])  # beyond the levels of 8 bits too
    W.requires_grad_()
    quantiser = LsqWeight(bits, W.shape).double()
    with torch.no_grad():
        quantiser.start(W)
    low, high = levels(bits)
    s = 2 * sum(abs(v) for v in W.flatten().tolist()) / W.numel() / math.sqrt(high)
    assert quantiser.step.item() == pytest.approx(s)
    g = torch.randn_like(W)
    out = quantiser(W)
    out.backward(g)
    rows = [slow(v, s, low, high, bits == 1) for v in W.flatten().tolist()]
    assert out.flatten().tolist() == pytest.approx([row[0] for row in rows])
    to_weight = [row[1] * pull for row, pull in zip(rows, g.flatten().tolist(), strict=True)]
    assert W.grad.flatten().tolist() == pytest.approx(to_weight)
    to_step = sum(row[2] * pull for row, pull in zip(rows, g.flatten().tolist(), strict=True))
    assert quantiser.step.grad.item() == pytest.approx(to_step / math.sqrt(W.numel() * high))
    # Each case of the formula has been met.
    assert {low, high} < {row[2] for row in rows}
    assert 1 in [row[1] for row in rows]


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_codes_and_the_step_are_the_weight(bits: int) -> None:
    W = weights(5, 7).float()
    quantiser = LsqWeight(bits, W.shape)
    with torch.no_grad():
        quantiser.start(W)
    codes, stored = quantiser.codes(W), quantiser.stored(W)
    low, _ = levels(bits)
    s = quantiser.step.item()
    expected = [s * ((2 * c - 1) if bits == 1 else c + low) for c in codes.flatten().tolist()]
    assert quantiser.decode(codes, stored).flatten().tolist() == pytest.approx(expected)
    assert torch.equal(quantiser.decode(codes, stored), quantiser(W))
    assert sum(t.numel() for t in stored.values()) == 1


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_activations_and_gradients_are_the_papers(bits: int) -> None:
    x = (weights(6, 2, 3, 3) * 2).requires_grad_()
    quantiser = LsqActivation(bits).double().train()
    g = torch.randn_like(x)
    out = quantiser(x)
    out.backward(g)
    high = 2**bits - 1
    s = 2 * sum(max(v, 0.0) for v in x.flatten().tolist()) / x.numel() / math.sqrt(high)
    assert quantiser.step.item() == pytest.approx(s)
    rows = [slow(v, s, 0, high) for v in x.flatten().tolist()]
    assert out.flatten().tolist() == pytest.approx([row[0] for row in rows])
    to_x = [row[1] * pull for row, pull in zip(rows, g.flatten().tolist(), strict=True)]
    assert x.grad.flatten().tolist() == pytest.approx(to_x)
    to_step = sum(row[2] * pull for row, pull in zip(rows, g.flatten().tolist(), strict=True))
    assert quantiser.step.grad.item() == pytest.approx(to_step / math.sqrt(18 * high))
    assert out.min() == 0


def test_the_first_batch_of_training_sets_the_step_and_no_other() -> None:
    quantiser = LsqActivation(2)
    one, two = weights(8, 4).abs().float(), 5 * weights(8, 4).abs().float()
    quantiser.eval()(two)
    assert quantiser.step.item() == 1.0
    quantiser.train()(one)
    step = quantiser.step.item()
    assert step == pytest.approx(2 * float(one.mean()) / math.sqrt(3))
    quantiser(two)
    assert quantiser.step.item() == step
    # A run that goes on keeps its step; one that has not begun takes the next batch.
    again = LsqActivation(2)
    again.load_state_dict(quantiser.state_dict())
    again.train()(two)
    assert again.step.item() == step
    again.load_state_dict(LsqActivation(2).state_dict())
    again.train()(two)
    assert again.step.item() == pytest.approx(5 * step)


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("step", [0.0, -1.0])
def test_a_step_that_is_not_above_0_gives_finite_numbers_and_can_come_back(
    bits: int, step: float
) -> None:
    W = weights(4, 4)
    W.requires_grad_()
    quantiser = LsqWeight(bits, W.shape).double()
    with torch.no_grad():
        quantiser.step.fill_(step)
    out = quantiser(W)
    (out - W).square().sum().backward()
    assert out.isfinite().all()
    assert quantiser.step.grad.item() < 0
    assert torch.equal(quantiser.decode(quantiser.codes(W), quantiser.stored(W)), out)


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_zero_weights_and_one_weight_a_filter(bits: int) -> None:
    for layer in (nn.Linear(1, 3, bias=False), nn.Conv2d(3, 3, 1, groups=3)):
        nn.init.zeros_(layer.weight)
        low = LsqWeight.from_float(layer, bits)
        low.continuous_weight().sum().backward()
        assert low.trained.grad.isfinite().all()
        assert low.quantized_weight().abs().max() < 1e-6


def test_both_kinds_of_layer() -> None:
    assert isinstance(LsqWeight.from_float(nn.Linear(3, 2), 2), RoundedLinear)
    assert isinstance(LsqWeight.from_float(nn.Conv2d(3, 2, 3), 2), RoundedConv2d)


def test_size_by_hand() -> None:
    network = quantize(tiny_network(), 2, 2, "lsq", torch.zeros(1, 1, 8, 8))
    # float: stem 27, head 60, two BNs of 2 numbers a channel; low-bit: 135 weights of 2 bits,
    # the weights' step and the activations'.
    assert len(low_bit_layers(network)) == 1
    assert size_bytes(profile(network, (1, 8, 8))) == 4 * (27 + 60 + 6 + 10) + 34 + 4 * (1 + 1)
