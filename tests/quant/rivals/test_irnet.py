"""IR-Net against slow versions of its formulas."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from slb_autotune.cost import profile
from slb_autotune.quant import quantize, set_temperature
from slb_autotune.quant.layers import low_bit_layers
from slb_autotune.quant.rivals.irnet import EdeSign, IrNetWeight
from tests.builders import tiny_network

SHAPES = [(4, 3, 3, 3), (3, 5, 1, 1), (5, 7), (2, 2)]
X = [-30.0, -2.0, -0.5, 0.0, 0.01, 0.3, 1.0, 4.0]


def t_and_k(progress: float) -> tuple[float, float]:
    t = 0.1 * 10 ** (progress * math.log10(10 / 0.1))
    return t, max(1 / t, 1)


def weights(shape: tuple[int, ...]) -> Tensor:
    """Off centre, and each filter of another spread."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    spread = torch.logspace(-1.5, 0.5, shape[0], dtype=torch.float64)
    return weight * spread.view(-1, *[1] * (len(shape) - 1)) + 0.1


def standardised(values: np.ndarray) -> np.ndarray:
    mean = sum(values) / len(values)
    std = math.sqrt(sum((w - mean) ** 2 for w in values) / len(values))
    return (values - mean) / std


def shift(standard: np.ndarray) -> float:
    return 2.0 ** round(math.log2(sum(abs(z) for z in standard) / len(standard)))


@pytest.mark.parametrize("shape", SHAPES)
def test_value_and_codes(shape: tuple[int, ...]) -> None:
    weight = weights(shape)
    quantizer = IrNetWeight(1, weight.shape)
    result, codes, stored = quantizer(weight), quantizer.codes(weight), quantizer.stored(weight)
    for f in range(shape[0]):
        standard = standardised(weight[f].flatten().numpy())
        scale = shift(standard)
        assert float(stored["scale"][f]) == scale
        assert result[f].flatten().tolist() == [scale if z >= 0 else -scale for z in standard]
        assert codes[f].flatten().tolist() == [int(z >= 0) for z in standard]
    assert torch.equal(quantizer.decode(codes, stored), result)


def test_signs_are_balanced() -> None:
    weight = 3.0 + 0.01 * torch.arange(-30, 30).view(1, 60)
    assert IrNetWeight(1, weight.shape).codes(weight).sum() == 30


@pytest.mark.parametrize(("count", "scale"), [(5, 1.0), (10, 0.5), (64, 0.25)])
def test_scales_are_shifts(count: int, scale: float) -> None:
    """One weight of n is not 0: mean |Z| = 2 sqrt(n - 1) / n = 0.8, 0.6 and 0.248."""
    weight = torch.zeros(1, count)
    weight[0, 0] = 9.0
    assert IrNetWeight(1, weight.shape).stored(weight)["scale"].tolist() == [scale]


@pytest.mark.parametrize("progress", [0.0, 0.4, 0.75, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient(shape: tuple[int, ...], progress: float) -> None:
    """That of 2**s k tanh(t Z), Z by its definition, by finite differences; s is a constant."""
    weight = weights(shape).requires_grad_()
    up = np.linspace(-1, 2, weight.numel()).reshape(shape[0], -1)
    quantizer = IrNetWeight(1, weight.shape)
    quantizer.progress = progress
    (quantizer(weight) * torch.from_numpy(up).view(shape)).sum().backward()
    t, k = t_and_k(progress)
    for f in range(shape[0]):
        values = weight[f].detach().flatten().numpy()
        scale = shift(standardised(values))

        def smooth(values: np.ndarray, f: int = f, scale: float = scale) -> float:
            return float((up[f] * scale * k * np.tanh(t * standardised(values))).sum())

        step = 1e-6 * values.std()
        for i, got in enumerate(weight.grad[f].flatten().tolist()):
            change = np.zeros(len(values))
            change[i] = step
            expected = (smooth(values + change) - smooth(values - change)) / (2 * step)
            assert got == pytest.approx(expected, rel=1e-4, abs=1e-4 / values.std())


def test_gradient_by_its_formula() -> None:
    weight = weights((3, 6)).requires_grad_()
    up = torch.linspace(-1, 2, 18, dtype=torch.float64).view(3, 6)
    quantizer = IrNetWeight(1, weight.shape)
    quantizer.progress = 0.6
    (quantizer(weight) * up).sum().backward()
    t, k = t_and_k(0.6)
    for f in range(3):
        values = weight[f].detach().numpy()
        Z = standardised(values)
        v = shift(Z) * up[f].numpy() * k * t * (1 - np.tanh(t * Z) ** 2)
        expected = (v - v.mean() - Z * (v * Z).mean()) / values.std()
        assert np.allclose(weight.grad[f].numpy(), expected)


@pytest.mark.parametrize(
    ("shape", "value"), [((2, 3, 3, 3), 0.0), ((3, 1, 1, 1), 0.3), ((2, 1), -0.3), ((2, 27), 0.3)]
)
def test_filters_of_equal_weights(shape: tuple[int, ...], value: float) -> None:
    """There is nothing to standardise; but for rounding all weights are 1."""
    weight = torch.full(shape, value, requires_grad=True)
    quantizer = IrNetWeight(1, weight.shape)
    result = quantizer(weight)
    result.sum().backward()
    if shape != (2, 27):
        assert torch.equal(result, torch.ones(shape))
    assert weight.grad.isfinite().all()
    assert result.isfinite().all()
    decoded = quantizer.decode(quantizer.codes(weight), quantizer.stored(weight.detach()))
    assert torch.equal(decoded, result)


@pytest.mark.parametrize("progress", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_signs_of_activations(progress: float) -> None:
    quantizer = EdeSign()
    quantizer.progress = progress
    x = torch.tensor(X, dtype=torch.float64, requires_grad=True)
    up = torch.arange(1.0, len(X) + 1, dtype=torch.float64)
    result = quantizer(x)
    (result * up).sum().backward()
    assert result.tolist() == [1.0 if v >= 0 else -1.0 for v in X]
    t, k = t_and_k(progress)
    pairs = zip(up.tolist(), X, strict=True)
    expected = [u * k * t * (1 - math.tanh(t * v) ** 2) for u, v in pairs]
    assert x.grad.tolist() == pytest.approx(expected, abs=1e-12)


def test_the_slope_sharpens() -> None:
    """Nearly 1 everywhere at first; at the end 10 at 0, and nothing far from it."""
    for progress, at_zero, at_one in ((0.0, 1.0, 0.990), (0.5, 1.0, 0.420), (1.0, 10.0, 0.0)):
        x = torch.tensor([0.0, 1.0], requires_grad=True)
        quantizer = EdeSign()
        quantizer.progress = progress
        quantizer(x).sum().backward()
        assert x.grad.tolist() == pytest.approx([at_zero, at_one], abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_is_kept(dtype: torch.dtype) -> None:
    x = torch.tensor(X, dtype=dtype, requires_grad=True)
    result = EdeSign()(x)
    result.sum().backward()
    assert result.dtype == x.grad.dtype == dtype


def test_training_says_how_far_it_is() -> None:
    network = quantize(tiny_network(), 1, 1, "irnet", torch.zeros(1, 1, 8, 8))
    set_temperature(network, 1.0, 0.7)
    layer = low_bit_layers(network)["3"]
    assert layer.quantizer.progress == layer.activation.progress == 0.7


def test_size() -> None:
    """135 weights of a bit are 17 bytes; and a scale for each of 5 filters."""
    network = quantize(tiny_network(), 1, 1, "irnet", torch.zeros(1, 1, 8, 8))
    table = profile(network, (1, 8, 8)).set_index("name")
    assert table.loc["3", "bytes"] == 17 + 5 * 4
    assert "3.activation" not in table.index
