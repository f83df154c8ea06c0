"""DoReFa's weights against slow versions of their formulas."""

import math

import pytest
import torch
from torch import Tensor, nn

from slb_autotune.cost import profile
from slb_autotune.quant import quantize
from slb_autotune.quant.rivals.dorefa import DoReFaWeight
from tests.builders import tiny_network

SHAPES = [(4, 3, 3, 3), (3, 1, 1, 1), (5, 7), (1, 1)]


def weights(shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def upstream(weight: Tensor) -> Tensor:
    return torch.linspace(-1, 2, weight.numel(), dtype=torch.float64).view(weight.shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_one_bit(shape: tuple[int, ...]) -> None:
    weight, quantizer = weights(shape), DoReFaWeight(1, torch.Size(shape))
    result = quantizer(weight)
    (result * upstream(weight)).sum().backward()
    values = weight.flatten().tolist()
    scale = sum(map(abs, values)) / len(values)
    expected = [scale if w >= 0 else -scale for w in values]
    assert result.flatten().tolist() == pytest.approx(expected)
    assert torch.equal(weight.grad, upstream(weight))
    stored = quantizer.stored(weight)
    assert stored["scale"].shape == (1,)
    assert torch.allclose(quantizer.decode(quantizer.codes(weight), stored), result)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_more_bits(bits: int, shape: tuple[int, ...]) -> None:
    weight, quantizer = weights(shape), DoReFaWeight(bits, torch.Size(shape))
    result = quantizer(weight)
    (result * upstream(weight)).sum().backward()
    n = 2**bits - 1
    values, up = weight.flatten().tolist(), upstream(weight).flatten().tolist()
    largest = max(abs(math.tanh(w)) for w in values)
    steps = [round(n * (math.tanh(w) / (2 * largest) + 0.5)) for w in values]
    assert quantizer.codes(weight).flatten().tolist() == steps
    assert result.flatten().tolist() == pytest.approx([2 * s / n - 1 for s in steps])
    slopes = [(1 - math.tanh(w) ** 2) / largest for w in values]
    expected = [s * u for s, u in zip(slopes, up, strict=True)]
    assert weight.grad.flatten().tolist() == pytest.approx(expected)
    assert quantizer.stored(weight) == {}
    decoded = quantizer.decode(quantizer.codes(weight), {})
    assert torch.allclose(decoded.double(), result)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_weights_that_are_all_zero(bits: int) -> None:
    weight = torch.zeros(2, 3, requires_grad=True)
    quantizer = DoReFaWeight(bits, weight.shape)
    result = quantizer(weight)
    result.sum().backward()
    assert weight.grad.isfinite().all()
    decoded = quantizer.decode(quantizer.codes(weight), quantizer.stored(weight))
    assert torch.allclose(decoded, result)
    # No step but the 1-bit one is at 0; the nearest is half a step away.
    assert float(result.detach().abs().max()) <= (0 if bits == 1 else 1 / (2**bits - 1) + 1e-6)


def test_halves_go_to_the_even_step() -> None:
    """A weight of 0 is half-way between steps 1 and 2 of 3."""
    weight = torch.tensor([[0.0, 0.5, -0.5]])
    assert DoReFaWeight(2, weight.shape).codes(weight).tolist() == [[2, 3, 0]]


def test_outermost_weights_are_at_the_ends() -> None:
    weight = torch.tensor([[-0.3, 0.001, 0.3]])
    assert DoReFaWeight(2, weight.shape)(weight).tolist()[0][::2] == [-1.0, 1.0]


def test_inference_in_float64() -> None:
    layer = DoReFaWeight.from_float(nn.Linear(4, 3).double(), 2).eval()
    assert layer(torch.randn(1, 4, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(("bits", "size"), [(1, 17 + 4), (2, 34), (3, 51), (8, 135)])
def test_size(bits: int, size: int) -> None:
    """135 weights; the scale of the layer at 1 bit, nothing else at more."""
    network = quantize(tiny_network(), bits, bits, "dorefa", torch.zeros(1, 1, 8, 8))
    table = profile(network, (1, 8, 8)).set_index("name")
    assert table.loc["3", "bytes"] == size
