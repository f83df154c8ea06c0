"""LQ-Net against plain numpy: levels, QEM, the moving average, gradients and bytes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from slb_autotune.cost import profile
from slb_autotune.quant.rivals.lqnet import LqNetActivation, LqNetWeight

BITS = (1, 2, 3, 4)


def nearest(x: float, basis: np.ndarray, low: int) -> np.ndarray:
    """The coefficients of the level next to x, by trying all."""
    rows = [np.array(row, dtype=float) for row in product((low, 1), repeat=len(basis))]
    return min(rows, key=lambda row: abs(row @ basis - x))


def moved(x: np.ndarray, basis: np.ndarray, low: int) -> np.ndarray:
    """The basis after a step, by the normal equations of the penalised problem."""
    B = np.array([nearest(value, basis, low) for value in x])
    gram = B.T @ B / len(x) + 1e-4 * np.eye(len(basis))
    best = np.linalg.inv(gram) @ (B.T @ x / len(x) + 1e-4 * basis)
    return 0.9 * basis + 0.1 * best


def weight_of(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.3


def quantizer_of(weight: torch.Tensor, bits: int) -> LqNetWeight:
    quantizer = LqNetWeight(bits, weight.shape)
    quantizer.start(weight)
    return quantizer


@pytest.mark.parametrize("bits", BITS)
def test_first_basis(bits: int) -> None:
    weight = weight_of(3, 5, 3, 3)
    basis = quantizer_of(weight, bits).basis
    for f in range(3):
        spread = float(np.sqrt(np.mean(weight[f].numpy() ** 2)))
        for i in range(bits):
            assert basis[f, i] == pytest.approx(0.6745 * spread / 2 ** (bits - 1) * 2**i)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 3, 3), (4, 30), (3, 1)])
def test_training_moves_the_basis_and_rounds_with_the_new_one(
    bits: int, mixed: bool, shape: tuple[int, ...]
) -> None:
    weight = weight_of(*shape)
    quantizer = quantizer_of(weight, bits).train()
    if mixed:  # levels that do not rise with their codes
        quantizer.basis = quantizer.basis.flip(1)
        quantizer.basis[1] *= -1
    for _ in range(3):
        before = quantizer.basis.numpy().copy()
        value = quantizer(weight)
        for f, row in enumerate(weight.flatten(1).numpy()):
            basis = moved(row, before[f], -1)
            np.testing.assert_allclose(quantizer.basis[f], basis, rtol=1e-9, atol=1e-12)
            rounded = [nearest(w, basis, -1) @ basis for w in row]
            np.testing.assert_allclose(value[f].flatten(), rounded, rtol=1e-9, atol=1e-12)
        assert torch.equal(
            value, quantizer.decode(quantizer.codes(weight), quantizer.stored(weight))
        )


@pytest.mark.parametrize("bits", BITS)
def test_a_bit_of_a_code_is_the_sign_of_a_basis(bits: int) -> None:
    weight = weight_of(2, 40)
    quantizer = quantizer_of(weight, bits)
    codes, basis = quantizer.codes(weight), quantizer.basis
    for f in range(2):
        for code, w in zip(codes[f].tolist(), weight[f].tolist(), strict=True):
            row = np.array([1 if code >> i & 1 else -1 for i in range(bits)])
            assert row @ basis[f].numpy() == pytest.approx(
                nearest(w, basis[f].numpy(), -1) @ basis[f].numpy()
            )


def test_levels_need_not_rise_with_their_codes() -> None:
    quantizer = LqNetWeight(2, torch.Size((1, 4)))
    quantizer.basis = torch.tensor([[3.0, -1.0]])
    weight = torch.tensor([[4.2, 1.9, -2.1, -9.0]])
    value = quantizer.eval()(weight)
    assert value.tolist() == [[4.0, 2.0, -2.0, -4.0]]
    assert quantizer.codes(weight).tolist() == [[1, 3, 0, 2]]


def test_half_way_is_the_lower_level() -> None:
    quantizer = LqNetWeight(2, torch.Size((1, 3)))
    quantizer.basis = torch.tensor([[1.0, 2.0]])
    assert quantizer.eval()(torch.tensor([[0.0, 2.0, -2.0]])).tolist() == [[-1.0, 1.0, -3.0]]
    activation = LqNetActivation(1).eval()
    activation.basis.fill_(1.0)
    assert activation(torch.tensor([[0.5, 0.51]])).tolist() == [[0.0, 1.0]]


def test_gradient_of_weights_passes_as_it_is() -> None:
    weight = weight_of(3, 4, 3, 3).requires_grad_()
    quantizer = quantizer_of(weight.detach(), 2).train()
    grad = weight_of(3, 4, 3, 3, seed=1)
    quantizer(weight).backward(grad)
    assert torch.equal(weight.grad, grad)


def test_one_bit_goes_to_the_mean_magnitude() -> None:
    weight = weight_of(2, 50)
    quantizer = quantizer_of(weight, 1).train()
    for _ in range(300):
        quantizer(weight)
    torch.testing.assert_close(quantizer.basis[:, 0], weight.abs().mean(1))


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_error_falls(bits: int) -> None:
    weight = weight_of(4, 200)
    quantizer = quantizer_of(weight, bits).train()
    errors = [float((quantizer(weight) - weight).square().mean()) for _ in range(60)]
    assert errors[-1] < 0.8 * errors[0]
    assert max(np.diff(errors)) < 1e-4 * errors[0]


def test_eval_leaves_the_basis_alone() -> None:
    weight = weight_of(2, 20)
    quantizer = quantizer_of(weight, 2)
    before = quantizer.basis.clone()
    quantizer.eval()(weight)
    assert torch.equal(quantizer.basis, before)
    with torch.no_grad():
        quantizer.train()(weight)
    assert not torch.equal(quantizer.basis, before)


@pytest.mark.parametrize("bits", BITS)
def test_zero_weights(bits: int) -> None:
    weight = torch.zeros(2, 3, 3, 3)
    quantizer = quantizer_of(weight, bits).train()
    assert torch.equal(quantizer(weight), weight)
    quantizer.basis += 0.5
    for _ in range(3):
        assert quantizer(weight).isfinite().all()
        assert quantizer.basis.isfinite().all()


@pytest.mark.parametrize("bits", BITS)
def test_one_weight_a_filter_is_met_exactly(bits: int) -> None:
    weight = torch.tensor([0.3, -0.2, 1e-4]).view(3, 1, 1, 1)
    quantizer = quantizer_of(weight, bits).train()
    for _ in range(200):
        value = quantizer(weight)
    torch.testing.assert_close(value, weight, rtol=1e-3, atol=0.0)


def test_what_the_weights_do_not_say_stays() -> None:
    # All weights take the code 11, so only the sum of the basis is known; the term that holds
    # the rest must survive 4,608 weights in float32.
    weight = torch.full((2, 512, 3, 3), 0.7)
    quantizer = quantizer_of(weight, 2).train()
    difference = quantizer.basis[:, 1] - quantizer.basis[:, 0]
    for _ in range(100):
        value = quantizer(weight)
    torch.testing.assert_close(value, weight, rtol=1e-3, atol=0.0)
    now = quantizer.basis[:, 1] - quantizer.basis[:, 0]
    torch.testing.assert_close(now, difference, rtol=0.05, atol=0.0)


def test_memory_layout_does_not_matter() -> None:
    weight = weight_of(4, 4, 3, 3).float()
    last = weight.to(memory_format=torch.channels_last)
    quantizer = quantizer_of(weight, 2)
    assert torch.equal(quantizer.codes(weight), quantizer.codes(last))
    assert torch.equal(quantizer.eval()(weight), quantizer(last))
    one, two = LqNetActivation(2), LqNetActivation(2)
    y = two(last)
    assert torch.equal(one(weight), y)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(one.basis, two.basis)


def test_autocast_fits_the_basis_in_full_precision() -> None:
    weight = weight_of(4, 300).float()
    one, two = quantizer_of(weight, 3).train(), quantizer_of(weight, 3).train()
    with torch.autocast("cpu", torch.bfloat16):
        value = one(weight)
    assert torch.equal(value, two(weight))
    assert torch.equal(one.basis, two.basis)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("mixed", [False, True])
def test_activations(bits: int, mixed: bool) -> None:
    quantizer = LqNetActivation(bits).double().train()
    first = [2 * 0.6745 / (2**bits - 1) * 2**i for i in range(bits)]
    np.testing.assert_allclose(quantizer.basis.numpy(), first, rtol=1e-6)
    if mixed:
        quantizer.basis.copy_(quantizer.basis.flip(0))
    for seed in range(3):
        x = (4 * weight_of(2, 3, 4, 4, seed=seed)).requires_grad_()
        before = quantizer.basis.numpy().copy()
        y = quantizer(x)
        positive = np.maximum(x.detach().numpy(), 0).flatten()
        rounded = [nearest(value, before, 0) @ before for value in positive]
        np.testing.assert_allclose(y.detach().flatten(), rounded, atol=1e-12)
        after = moved(positive, before, 0)
        np.testing.assert_allclose(quantizer.basis.numpy(), after, rtol=1e-9, atol=1e-12)
        grad = weight_of(2, 3, 4, 4, seed=seed + 9)
        y.backward(grad)
        for value, mine, its in zip(
            x.detach().flatten(), x.grad.flatten(), grad.flatten(), strict=True
        ):
            assert mine == (its if 0 <= value <= before.sum() else 0)


def test_negative_inputs_count_as_zero_whatever_the_basis() -> None:
    quantizer = LqNetActivation(2)
    quantizer.basis.copy_(torch.tensor([2.0, -0.5]))
    x = torch.tensor([[-3.0, -0.4, 0.1, 1.6, 1.9]])
    assert quantizer.eval()(x).tolist() == [[0.0, 0.0, 0.0, 1.5, 2.0]]
    other = copy_of(quantizer)
    quantizer.train()(x)
    other.train()(x.clamp_min(0))
    assert torch.equal(quantizer.basis, other.basis)


def copy_of(quantizer: LqNetActivation) -> LqNetActivation:
    other = LqNetActivation(quantizer.bits)
    other.load_state_dict(quantizer.state_dict())
    return other


@pytest.mark.parametrize("x", [torch.zeros(2, 5), -torch.ones(2, 5)])
def test_inputs_without_a_positive_one_keep_the_basis(x: torch.Tensor) -> None:
    quantizer = LqNetActivation(2).train()
    before = quantizer.basis.clone()
    assert torch.equal(quantizer(x), torch.zeros(2, 5))
    torch.testing.assert_close(quantizer.basis, before)


def test_eval_leaves_the_basis_of_activations_alone() -> None:
    quantizer = LqNetActivation(2).eval()
    before = quantizer.basis.clone()
    quantizer(torch.rand(4, 5))
    assert torch.equal(quantizer.basis, before)
    assert not quantizer.basis.requires_grad


def test_bytes() -> None:
    # 8 x 4 x 3 x 3 weights of 2 bits; a basis of 2 floats for 8 filters, and one for the input.
    layer = LqNetWeight.from_float(nn.Conv2d(4, 8, 3, bias=False), 2)
    layer.activation = LqNetActivation(2)
    assert profile(layer, (4, 5, 5))["bytes"].sum() == 288 * 2 // 8 + 4 * 2 * 8 + 4 * 2


def test_shapes_alone_go_through() -> None:
    with torch.device("meta"):
        layer = LqNetWeight.from_float(nn.Linear(6, 4), 3).eval()
        layer.activation = LqNetActivation(3).eval()
        assert layer(torch.zeros(2, 6)).shape == (2, 4)
        assert layer.continuous_weight().shape == (4, 6)
