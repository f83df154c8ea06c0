"""Bi-Real's weights against a slow version of their formulas."""

import pytest
import torch
from torch import nn

from slb_autotune.cost import profile
from slb_autotune.quant import BiRealSign, quantize
from slb_autotune.quant.layers import low_bit_layers
from slb_autotune.quant.rivals.bireal import BiRealWeight
from tests.builders import tiny_network


@pytest.mark.parametrize("shape", [(4, 3, 3, 3), (3, 1, 1, 1), (5, 7), (2, 1)])
def test_value_and_gradient(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    up = torch.linspace(-1, 2, weight.numel(), dtype=torch.float64).view(shape)
    quantizer = BiRealWeight(1, weight.shape)
    result = quantizer(weight)
    (result * up).sum().backward()
    stored = quantizer.stored(weight.detach())
    for f in range(shape[0]):
        w, u = weight[f].flatten().tolist(), up[f].flatten().tolist()
        alpha = sum(map(abs, w)) / len(w)
        assert float(stored["alpha"][f]) == pytest.approx(alpha)
        expected = [alpha if x >= 0 else -alpha for x in w]
        assert result[f].flatten().tolist() == pytest.approx(expected)
        expected = [alpha * g if abs(x) <= 1 else 0.0 for x, g in zip(w, u, strict=True)]
        assert weight.grad[f].flatten().tolist() == pytest.approx(expected)
    assert torch.equal(quantizer.decode(quantizer.codes(weight), stored), result)


def test_weights_that_are_all_zero() -> None:
    weight = torch.zeros(2, 3, requires_grad=True)
    result = BiRealWeight(1, weight.shape)(weight)
    result.sum().backward()
    assert torch.equal(result, torch.zeros(2, 3))
    assert torch.equal(weight.grad, torch.zeros(2, 3))


def test_inputs_are_signs() -> None:
    network = quantize(tiny_network(), 1, 1, "bireal", torch.zeros(1, 1, 8, 8))
    assert isinstance(low_bit_layers(network)["3"].activation, BiRealSign)
    assert not any(isinstance(m, nn.ReLU) for m in list(network)[:3])


def test_size() -> None:
    """135 weights of a bit are 17 bytes; and a scale for each of 5 filters."""
    network = quantize(tiny_network(), 1, 1, "bireal", torch.zeros(1, 1, 8, 8))
    table = profile(network, (1, 8, 8)).set_index("name")
    assert table.loc["3", "bytes"] == 17 + 5 * 4
    assert "3.activation" not in table.index
