"""AdaBin against slow versions of its formulas."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from slb_autotune.cost import profile
from slb_autotune.quant import quantize
from slb_autotune.quant.rivals.adabin import AdaBinActivation, AdaBinWeight
from tests.builders import tiny_network

SHAPES = [(4, 3, 3, 3), (3, 5, 1, 1), (5, 7), (2, 2)]


def weights(shape: tuple[int, ...]) -> Tensor:
    """Off centre, and each filter of another spread."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    spread = torch.logspace(-1.5, 0.5, shape[0], dtype=torch.float64)
    return weight * spread.view(-1, *[1] * (len(shape) - 1)) + 0.1


def centre_and_spread(values: np.ndarray) -> tuple[float, float]:
    beta = sum(values) / len(values)
    return beta, math.sqrt(sum((w - beta) ** 2 for w in values)) / math.sqrt(len(values))


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_and_codes(shape: tuple[int, ...]) -> None:
    weight = weights(shape)
    quantizer = AdaBinWeight(1, weight.shape)
    result, codes, stored = quantizer(weight), quantizer.codes(weight), quantizer.stored(weight)
    for f in range(shape[0]):
        values = weight[f].flatten().numpy()
        beta, alpha = centre_and_spread(values)
        assert float(stored["beta"][f]) == pytest.approx(beta)
        assert float(stored["alpha"][f]) == pytest.approx(alpha)
        expected = [beta + alpha if w >= beta else beta - alpha for w in values]
        assert result[f].flatten().tolist() == pytest.approx(expected)
        assert codes[f].flatten().tolist() == [int(w >= beta) for w in values]
    assert torch.allclose(quantizer.decode(codes, stored), result)


@pytest.mark.parametrize("progress", [0.0, 0.4, 0.75, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_of_weights(shape: tuple[int, ...], progress: float) -> None:
    """alpha sign(z) + beta, where k tanh(t z) stands for the sign when z moves and alpha does not,
    by finite differences.
    """
    weight = weights(shape).requires_grad_()
    up = np.linspace(-1, 2, weight.numel()).reshape(shape[0], -1)
    quantizer = AdaBinWeight(1, weight.shape)
    quantizer.progress = progress
    (quantizer(weight) * torch.from_numpy(up).view(shape)).sum().backward()
    t = 0.1 * 100**progress
    k = max(1 / t, 1)
    for f in range(shape[0]):
        values = weight[f].detach().flatten().numpy()
        beta0, alpha0 = centre_and_spread(values)
        signs = np.where(values >= beta0, 1.0, -1.0)

        def smooth(
            values: np.ndarray, f: int = f, alpha0: float = alpha0, signs: np.ndarray = signs
        ) -> float:
            beta, alpha = centre_and_spread(values)
            moved = alpha0 * k * np.tanh(t * (values - beta) / alpha)
            return float((up[f] * (alpha * signs + beta + moved)).sum())

        step = 1e-6 * alpha0
        for i, got in enumerate(weight.grad[f].flatten().tolist()):
            change = np.zeros(len(values))
            change[i] = step
            expected = (smooth(values + change) - smooth(values - change)) / (2 * step)
            assert got == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("shape", "value"), [((2, 3, 3, 3), 0.0), ((3, 1, 1, 1), 0.3), ((2, 1), -0.3), ((2, 27), 0.3)]
)
def test_filters_of_equal_weights(shape: tuple[int, ...], value: float) -> None:
    """They have no spread: both levels are the weight itself."""
    weight = torch.full(shape, value, requires_grad=True)
    quantizer = AdaBinWeight(1, weight.shape)
    result = quantizer(weight)
    result.sum().backward()
    assert torch.allclose(result, weight)
    assert weight.grad.isfinite().all()
    decoded = quantizer.decode(quantizer.codes(weight), quantizer.stored(weight.detach()))
    assert torch.equal(decoded, result)


def test_the_gradient_of_one_weight_a_filter_passes() -> None:
    weight = torch.tensor([[0.3], [-2.0]], requires_grad=True)
    (AdaBinWeight(1, weight.shape)(weight) * torch.tensor([[5.0], [7.0]])).sum().backward()
    assert weight.grad.tolist() == [[5.0], [7.0]]


def test_weights_keep_mean_and_length_of_the_filter_where_they_are_balanced() -> None:
    """The set of two levels has the filter's own mean and spread: that is what chose it."""
    weight = torch.tensor([[1.0, 2.0, 4.0, 5.0]])
    result = AdaBinWeight(1, weight.shape)(weight)
    assert float(result.mean()) == pytest.approx(3.0)
    assert float(result.std()) == pytest.approx(float(weight.std()))


X = [-3.0, -0.9, -0.2, 0.0, 0.1, 0.25, 0.3, 0.8, 1.1, 7.0]


def levels(x: float, alpha: float, beta: float) -> float:
    return beta + abs(alpha) if x >= beta else beta - abs(alpha)


def polynomial(z: float) -> float:
    """Bi-Real's curve in the place of the sign."""
    return 2 * z - z * abs(z) if abs(z) < 1 else math.copysign(1, z)


@pytest.mark.parametrize("alpha", [1.0, 0.6, 2.5, -0.6])
@pytest.mark.parametrize("beta", [0.0, 0.25, -0.4])
def test_activations(alpha: float, beta: float) -> None:
    quantizer = AdaBinActivation().double()
    with torch.no_grad():
        quantizer.alpha.fill_(alpha)
        quantizer.beta.fill_(beta)
    x = torch.tensor(X, dtype=torch.float64, requires_grad=True)
    up = [float(i) for i in range(1, len(X) + 1)]
    result = quantizer(x)
    (result * torch.tensor(up, dtype=torch.float64)).sum().backward()
    assert result.tolist() == pytest.approx([levels(v, alpha, beta) for v in X])

    size, heading = abs(alpha), math.copysign(1, alpha)
    to_x, to_alpha, to_beta = [], 0.0, 0.0
    for v, u in zip(X, up, strict=True):
        z = (v - beta) / size
        slope = max(0.0, 2 - 2 * abs(z))
        to_x.append(u * slope)
        to_alpha += u * heading * ((1 if z >= 0 else -1) - z * slope)
        to_beta += u * (1 - slope)
    assert x.grad.tolist() == pytest.approx(to_x)
    assert quantizer.alpha.grad.tolist() == pytest.approx([to_alpha])
    assert quantizer.beta.grad.tolist() == pytest.approx([to_beta])


def test_gradients_of_activations_by_finite_differences() -> None:
    """alpha sign(z) + beta, where the curve stands for the sign when z moves."""
    alpha0, beta0, step = 0.7, 0.15, 1e-6
    up = [float(i) for i in range(1, len(X) + 1)]
    signs = [1.0 if v >= beta0 else -1.0 for v in X]

    def smooth(alpha: float, beta: float) -> float:
        return sum(
            u * (alpha * s + beta + alpha0 * polynomial((v - beta) / alpha))
            for u, s, v in zip(up, signs, X, strict=True)
        )

    quantizer = AdaBinActivation().double()
    with torch.no_grad():
        quantizer.alpha.fill_(alpha0)
        quantizer.beta.fill_(beta0)
    x = torch.tensor(X, dtype=torch.float64)
    (quantizer(x) * torch.tensor(up, dtype=torch.float64)).sum().backward()
    to_alpha = (smooth(alpha0 + step, beta0) - smooth(alpha0 - step, beta0)) / (2 * step)
    to_beta = (smooth(alpha0, beta0 + step) - smooth(alpha0, beta0 - step)) / (2 * step)
    assert quantizer.alpha.grad.tolist() == pytest.approx([to_alpha], abs=1e-4)
    assert quantizer.beta.grad.tolist() == pytest.approx([to_beta], abs=1e-4)


def test_activations_start_as_signs() -> None:
    x = torch.tensor(X)
    assert AdaBinActivation()(x).tolist() == [1.0 if v >= 0 else -1.0 for v in X]


def test_an_alpha_of_zero_is_survived_and_left_again() -> None:
    quantizer = AdaBinActivation()
    with torch.no_grad():
        quantizer.alpha.zero_()
    x = torch.tensor([-20.0, -1.0, 0.0, 3.0], requires_grad=True)
    (quantizer(x) * torch.tensor([1.0, 1.0, 1.0, 9.0])).sum().backward()
    for grad in (x.grad, quantizer.alpha.grad, quantizer.beta.grad):
        assert grad.isfinite().all()
    assert quantizer.alpha.grad.tolist() == pytest.approx([8.0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_is_kept(dtype: torch.dtype) -> None:
    x = torch.tensor(X, dtype=dtype, requires_grad=True)
    quantizer = AdaBinActivation()
    result = quantizer(x)
    result.sum().backward()
    assert result.dtype == x.grad.dtype == dtype
    assert quantizer.alpha.grad.dtype == torch.float32


def test_size() -> None:
    """135 weights of a bit are 17 bytes; two numbers a filter, and two for the input."""
    network = quantize(tiny_network(), 1, 1, "adabin", torch.zeros(1, 1, 8, 8))
    table = profile(network, (1, 8, 8)).set_index("name")
    assert table.loc["3", "bytes"] == 17 + 5 * 2 * 4
    assert table.loc["3.activation", "bytes"] == 2 * 4
