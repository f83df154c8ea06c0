"""TTQ against a slow version of its formulas."""

import pytest
import torch
from torch import Tensor, nn

from slb_autotune.cost import profile
from slb_autotune.quant import quantize
from slb_autotune.quant.rivals.ttq import TtqWeight, ternary
from tests.builders import tiny_network

SHAPES = [(4, 3, 3, 3), (3, 1, 1, 1), (5, 7), (1, 1)]
P, N = 0.7, 1.3


def quantizer_for(shape: tuple[int, ...]) -> TtqWeight:
    quantizer = TtqWeight(2, torch.Size(shape)).double()
    with torch.no_grad():
        quantizer.positive.fill_(P)
        quantizer.negative.fill_(N)
    return quantizer


def weights(shape: tuple[int, ...]) -> Tensor:
    """A fifth of them, more or less, within the threshold."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (weight * weight.abs()).requires_grad_()


def slow_levels(values: list[float]) -> list[int]:
    threshold = 0.05 * max(map(abs, values))
    return [1 if w > threshold else -1 if w < -threshold else 0 for w in values]


@pytest.mark.parametrize("shape", SHAPES)
def test_value_and_gradients(shape: tuple[int, ...]) -> None:
    weight, quantizer = weights(shape), quantizer_for(shape)
    up = torch.linspace(-1, 2, weight.numel(), dtype=torch.float64).view(shape)
    result = quantizer(weight)
    (result * up).sum().backward()
    levels = slow_levels(weight.flatten().tolist())
    if len(levels) > 20:
        assert set(levels) == {-1, 0, 1}
    assert result.flatten().tolist() == pytest.approx([{1: P, 0: 0, -1: -N}[k] for k in levels])

    pairs = list(zip(levels, up.flatten().tolist(), strict=True))
    expected = [{1: P, 0: 1.0, -1: N}[k] * u for k, u in pairs]
    assert weight.grad.flatten().tolist() == pytest.approx(expected)
    assert quantizer.positive.grad.tolist() == pytest.approx([sum(u for k, u in pairs if k > 0)])
    assert quantizer.negative.grad.tolist() == pytest.approx([-sum(u for k, u in pairs if k < 0)])


def test_the_gradients_of_both_levels_are_the_true_ones() -> None:
    weight, quantizer = weights((3, 8)).detach(), quantizer_for((3, 8))
    apply = torch.func.functional_call

    def weighed(positive: Tensor, negative: Tensor) -> Tensor:
        return apply(quantizer, {"positive": positive, "negative": negative}, (weight,))

    levels = (quantizer.positive, quantizer.negative)
    assert torch.autograd.gradcheck(weighed, levels)


@pytest.mark.parametrize("shape", SHAPES)
def test_codes(shape: tuple[int, ...]) -> None:
    weight, quantizer = weights(shape), quantizer_for(shape)
    codes = quantizer.codes(weight)
    assert codes.flatten().tolist() == [k + 1 for k in slow_levels(weight.flatten().tolist())]
    assert torch.equal(quantizer.decode(codes, quantizer.stored(weight)), quantizer(weight))


def test_every_code_means_something() -> None:
    codes = torch.arange(4, dtype=torch.uint8).view(1, 4)
    quantizer = quantizer_for((1, 4))
    decoded = quantizer.decode(codes, quantizer.stored(torch.zeros(1, 4)))
    assert decoded.tolist() == [[-N, 0.0, P, 0.0]]


def test_the_threshold_itself_is_zero() -> None:
    weight = torch.tensor([1.0, 0.05, -0.05, 0.051, -0.051], dtype=torch.float64)
    assert ternary(weight).tolist() == [1, 0, 0, 1, -1]


def test_weights_that_are_all_zero() -> None:
    weight, quantizer = torch.zeros(2, 3, requires_grad=True), TtqWeight(2, torch.Size((2, 3)))
    result = quantizer(weight)
    result.sum().backward()
    assert torch.equal(result, torch.zeros(2, 3))
    assert torch.equal(weight.grad, torch.ones(2, 3))
    assert quantizer.positive.grad.tolist() == quantizer.negative.grad.tolist() == [0.0]


def test_starts_at_one_and_descends() -> None:
    """A step against dL/dn takes the lower level nearer to what the loss asks for."""
    layer = TtqWeight.from_float(nn.Linear(2, 1, bias=False), 2)
    assert layer.stored() == {"positive": torch.ones(1), "negative": torch.ones(1)}
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5, -0.5]]))
    optimizer = torch.optim.SGD([layer.quantizer.positive, layer.quantizer.negative], 0.1)
    for _ in range(100):
        optimizer.zero_grad()
        (layer.continuous_weight() - torch.tensor([[0.3, -1.7]])).square().sum().backward()
        optimizer.step()
    assert layer.quantized_weight().tolist()[0] == pytest.approx([0.3, -1.7], abs=1e-3)


def test_size() -> None:
    """135 weights of 2 bits are 34 bytes; and two levels."""
    network = quantize(tiny_network(), 2, 32, "ttq", torch.zeros(1, 1, 8, 8))
    table = profile(network, (1, 8, 8)).set_index("name")
    assert table.loc["3", "bytes"] == 34 + 8
