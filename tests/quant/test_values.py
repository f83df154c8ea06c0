"""V by code, and float weights rounded to it: the scale, the nearest value, what stays."""

import numpy as np
import pytest
import torch

from slb_autotune.quant import values as module
from slb_autotune.quant.values import best_scale, nearest_value, rounded, value_set, values_at

ALL_BITS = [1, 2, 3, 4, 8]


def values(bits: int) -> np.ndarray:
    return np.linspace(-1, 1, 2**bits)


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_are_those_of_linspace_rounded_once(bits: int, dtype: torch.dtype) -> None:
    exact = torch.linspace(-1, 1, 2**bits, dtype=torch.float64)
    assert torch.equal(value_set(bits, dtype), exact.to(dtype))


def test_values_of_the_paper() -> None:
    assert value_set(1).tolist() == [-1, 1]
    assert value_set(2).tolist() == pytest.approx([-1, -1 / 3, 1 / 3, 1])
    assert float(value_set(4)[1] - value_set(4)[0]) == pytest.approx(2 / 15)


@pytest.mark.parametrize("bits", ALL_BITS)
def test_codes_are_places_in_V(bits: int) -> None:
    V = value_set(bits, torch.float64)
    codes = torch.arange(2**bits, dtype=torch.uint8).flip(0)
    assert torch.equal(values_at(codes, V), V.flip(0))


@pytest.mark.parametrize("bits", ALL_BITS)
def test_every_weight_goes_to_its_nearest_value(bits: int) -> None:
    weight = torch.randn(4, 3, 3, 3)
    scaled = best_scale(weight, bits) * values(bits)
    slow = [min(scaled, key=lambda v, w=w: abs(v - w)) for w in weight.flatten().tolist()]
    assert torch.allclose(rounded(weight, bits).flatten(), torch.tensor(slow).float())


@pytest.mark.parametrize("bits", ALL_BITS)
def test_no_other_scale_is_much_better(bits: int) -> None:
    weight = (torch.randn(500).double() * torch.rand(500) * 0.1).numpy()

    def error(scale: float) -> float:
        return float(np.square(values(bits) * scale - weight[:, None]).min(1).sum())

    least = min(error(np.abs(weight).max() * k / 1000) for k in range(1, 1101))
    assert error(best_scale(torch.tensor(weight), bits)) <= 1.02 * least


def test_a_large_tensor_is_searched_on_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(2000)
    whole = rounded(weight, 3)
    monkeypatch.setattr(module, "_SAMPLE", 200)
    part = rounded(weight, 3)
    errors = [float((result - weight).square().sum()) for result in (whole, part)]
    assert errors[1] <= 1.05 * errors[0]


def test_one_bit_is_the_mean_magnitude() -> None:
    weight = torch.randn(7, 5)
    assert best_scale(weight, 1) == pytest.approx(float(weight.abs().double().mean()), rel=1e-12)


def test_weights_that_are_values_already_stay() -> None:
    weight = 0.25 * torch.tensor(values(2)).float().repeat(5)
    assert torch.allclose(rounded(weight, 2), weight, rtol=1e-6, atol=0)


def test_a_tie_takes_the_first_value() -> None:
    assert nearest_value(torch.tensor([0.0, 5.0, -5.0]), 1).tolist() == [-1, 1, -1]


def test_zeros_input_and_dtype_are_left_alone() -> None:
    zeros = torch.zeros(2, 3)
    assert best_scale(zeros, 3) == 0
    assert torch.equal(rounded(zeros, 3), zeros)
    weight = torch.randn(8).to(torch.float64)
    before = weight.clone()
    assert rounded(weight, 2).dtype == torch.float64
    assert torch.equal(weight, before)
