"""ABC-Net against plain numpy: bases, least squares, gradients and bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from slb_autotune.cost import profile
from slb_autotune.quant.rivals.abcnet import AbcNetActivation, AbcNetWeight

BITS = (1, 2, 3, 4)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def bases_of(weight: np.ndarray, bits: int) -> np.ndarray:
    """The bases as columns, by the paper's formula."""
    shifts = [0.0] if bits == 1 else [-1 + i * 2 / (bits - 1) for i in range(bits)]
    shifted = [weight - weight.mean() + u * weight.std() for u in shifts]
    return np.stack([np.where(row >= 0, 1.0, -1.0) for row in shifted], axis=1)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(4, 5, 3, 3), (7, 20), (40, 1)])
def test_weights(bits: int, shape: tuple[int, ...]) -> None:
    weight = 0.1 * numbers(*shape) + 0.02
    quantizer = AbcNetWeight(bits, weight.shape)
    flat = weight.numpy().flatten()
    B = bases_of(flat, bits)
    alpha = np.linalg.lstsq(B, flat, rcond=None)[0]
    np.testing.assert_allclose(quantizer.stored(weight)["alpha"], alpha, rtol=1e-9)
    np.testing.assert_allclose(quantizer(weight).flatten(), B @ alpha, rtol=1e-9)
    for code, row in zip(quantizer.codes(weight).flatten().tolist(), B, strict=True):
        assert [1 if code >> i & 1 else -1 for i in range(bits)] == row.tolist()
    assert len(quantizer.codes(weight).unique()) == bits + 1


@pytest.mark.parametrize("bits", BITS)
def test_gradient_of_weights_is_scaled_by_the_sum_of_alpha(bits: int) -> None:
    weight, grad = numbers(4, 5, 3, 3).requires_grad_(), numbers(4, 5, 3, 3, seed=1)
    quantizer = AbcNetWeight(bits, weight.shape)
    quantizer(weight).backward(grad)
    flat = weight.detach().numpy().flatten()
    alpha = np.linalg.lstsq(bases_of(flat, bits), flat, rcond=None)[0]
    np.testing.assert_allclose(weight.grad, alpha.sum() * grad.numpy(), rtol=1e-9)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 6,
        [0.7] * 6,
        [-0.7] * 6,
        [0.4],
        [-1.0, 1.0],
        [-1.0, -1.0, 5.0],
        [-3.0, 0.0, 0.0, 3.0],
        [1.0, 2.0, 3.0, 9.0],
    ],
)
def test_equations_without_one_solution(bits: int, values: list[float]) -> None:
    """The bases may coincide: what alpha is then is open, but not how near W_q comes to W."""
    weight = torch.tensor(values, dtype=torch.float64).view(-1, 1)
    quantizer = AbcNetWeight(bits, weight.shape)
    B = bases_of(np.array(values), bits)
    best = B @ np.linalg.lstsq(B, np.array(values), rcond=None)[0]
    np.testing.assert_allclose(quantizer(weight).flatten(), best, atol=1e-9)
    assert quantizer.float()(weight.float()).isfinite().all()


def test_weights_of_two_bits_by_hand() -> None:
    # The mean is 0, std 2.97. Beyond it are 5 and -4, of mean magnitude 4.5; the mean of the
    # rest is -1/3. alpha_1 leads from there up to 4.5, alpha_2 from -4.5 to there.
    weight = torch.tensor([[5.0, -4.0, 1.0, -1.0, -1.0]])
    quantizer = AbcNetWeight(2, weight.shape)
    assert quantizer.codes(weight).tolist() == [[3, 0, 2, 2, 2]]
    alpha = quantizer.stored(weight)["alpha"].tolist()
    assert alpha == pytest.approx([(4.5 + 1 / 3) / 2, (-1 / 3 + 4.5) / 2])
    third = -1 / 3
    assert quantizer(weight)[0].tolist() == pytest.approx([4.5, -4.5, third, third, third])


@pytest.mark.parametrize("bits", BITS)
def test_activations(bits: int) -> None:
    quantizer = AbcNetActivation(bits).double()
    with torch.no_grad():
        quantizer.shift.add_(0.2 * numbers(bits, seed=3))
        quantizer.scale.add_(0.2 * numbers(bits, seed=4))
    x, grad = numbers(2, 3, 4, 4).requires_grad_(), numbers(2, 3, 4, 4, seed=1)
    y = quantizer(x)
    y.backward(grad)
    shifts, scales = quantizer.shift.tolist(), quantizer.scale.tolist()
    to_shift, to_scale = [0.0] * bits, [0.0] * bits
    for value, out, g, to_x in zip(
        *(t.detach().flatten().tolist() for t in (x, y, grad, x.grad)), strict=True
    ):
        total = expected = 0.0
        for j in range(bits):
            clipped = min(max(value + shifts[j], 0.0), 1.0)
            A = 1 if clipped >= 0.5 else -1
            total += scales[j] * A
            to_scale[j] += g * A
            if 0 <= value + shifts[j] <= 1:
                expected += g * scales[j]
                to_shift[j] += g * scales[j]
        assert out == pytest.approx(total)
        assert to_x == pytest.approx(expected)
    assert quantizer.shift.grad.tolist() == pytest.approx(to_shift)
    assert quantizer.scale.grad.tolist() == pytest.approx(to_scale)


def test_scales_have_their_true_gradient() -> None:
    quantizer = AbcNetActivation(3).double()
    x, shift = numbers(5, 6), quantizer.shift.detach()

    def rounded(scale: torch.Tensor) -> torch.Tensor:
        parameters = {"shift": shift, "scale": scale}
        return torch.func.functional_call(quantizer, parameters, (x,))

    torch.autograd.gradcheck(rounded, quantizer.scale.detach().requires_grad_())


@pytest.mark.parametrize(
    ("bits", "thresholds"), [(1, [0.5]), (2, [0.25, 0.75]), (4, [0.125, 0.375, 0.625, 0.875])]
)
def test_first_thresholds(bits: int, thresholds: list[float]) -> None:
    quantizer = AbcNetActivation(bits)
    for j, threshold in enumerate(thresholds):
        below, above = quantizer(torch.tensor([threshold - 1e-3, threshold + 1e-3])).tolist()
        assert below == pytest.approx(-1 + 2 * j / bits)
        assert above == pytest.approx(-1 + 2 * (j + 1) / bits)


def test_bytes() -> None:
    # 8 x 4 x 3 x 3 weights of 3 bits and 3 alphas for the layer; 2 shifts and 2 scales.
    layer = AbcNetWeight.from_float(nn.Conv2d(4, 8, 3, bias=False), 3)
    layer.activation = AbcNetActivation(2)
    assert profile(layer, (4, 5, 5))["bytes"].sum() == 288 * 3 // 8 + 4 * 3 + 4 * (2 + 2)


def test_shapes_alone_go_through() -> None:
    with torch.device("meta"):
        layer = AbcNetWeight.from_float(nn.Linear(6, 4), 3).eval()
        layer.activation = AbcNetActivation(3).eval()
        assert layer(torch.zeros(2, 6)).shape == (2, 4)
        assert layer.continuous_weight().shape == (4, 6)
