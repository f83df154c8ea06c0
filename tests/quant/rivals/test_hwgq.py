"""HWGQ: the step by brute force, the levels by loops, the gradient, and bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from torch import nn

from slb_autotune.cost import profile
from slb_autotune.quant import quantize
from slb_autotune.quant.rivals.hwgq import HwgqActivation, best_step

BITS = (1, 2, 3, 4)


def rounded(x: float, step: float, count: int) -> float:
    """The nearest positive level, the lower of two; 0 where x is not positive."""
    if x <= 0:
        return 0.0
    return min((i * step for i in range(1, count + 1)), key=lambda level: abs(level - x))


def error(step: float, count: int) -> float:
    """The mean squared error over the positive half, cell by cell."""
    edges = [0.0, *((i + 0.5) * step for i in range(1, count)), 12.0]
    return sum(
        quad(
            lambda x, q=i * step: (x - q) ** 2 * math.exp(-x * x / 2) * math.sqrt(2 / math.pi),
            edges[i - 1],
            edges[i],
            epsabs=1e-13,
        )[0]
        for i in range(1, count + 1)
    )


@pytest.mark.parametrize("bits", BITS)
def test_the_step_is_the_best_one(bits: int) -> None:
    count = 2**bits - 1
    found = minimize_scalar(
        error, bounds=(0.05, 1.5), args=(count,), method="bounded", options={"xatol": 1e-9}
    )
    assert best_step(count) == pytest.approx(found.x, abs=1e-6)


def test_known_steps() -> None:
    assert best_step(1) == pytest.approx(math.sqrt(2 / math.pi))
    # The authors' networks of 2 bits have the levels 0.538, 1.076 and 1.614.
    assert best_step(3) == pytest.approx(0.538, abs=1e-3)


@pytest.mark.parametrize("bits", BITS)
def test_values_and_gradient(bits: int) -> None:
    count = 2**bits - 1
    step = best_step(count)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, generator=generator, dtype=torch.float64) * 1.3
    special = [0.0, -0.0, 1e-9, -1e-9, 50.0, -50.0, count * step]
    x = torch.cat((x, torch.tensor(special, dtype=torch.float64)))
    grad = torch.randn(len(x), generator=generator, dtype=torch.float64)
    x.requires_grad_()
    y = HwgqActivation(bits)(x)
    y.backward(grad)
    expected = [rounded(value, step, count) for value in x.tolist()]
    np.testing.assert_allclose(y.detach(), expected, atol=1e-12)
    assert len(y.unique()) == 2**bits
    inside = [g if 0 < value <= count * step else 0.0 for value, g in zip(x, grad, strict=True)]
    assert x.grad.tolist() == [float(g) for g in inside]


def test_half_way_is_the_lower_level() -> None:
    step = best_step(3)
    edges = torch.tensor([1.5, 2.5], dtype=torch.float64) * step
    quantizer = HwgqActivation(2)
    np.testing.assert_allclose(quantizer(edges - 1e-9), [step, 2 * step])
    np.testing.assert_allclose(quantizer(edges + 1e-9), [2 * step, 3 * step])


def test_bytes() -> None:
    # The second convolution: 8 x 8 x 3 x 3 signs and 8 scales; the levels are constants.
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8)
    )
    table = profile(quantize(network, 1, 2, "hwgq", torch.zeros(1, 1, 8, 8)), (1, 8, 8))
    own = table[table["name"].str.startswith("2")]
    assert own["bytes"].sum() == 576 // 8 + 4 * 8
    assert list(own["activation_bits"]) == [2]
