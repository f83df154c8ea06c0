"""SYQ against a slow version of its formulas."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slb_autotune.cost import profile
from slb_autotune.quant import quantize
from slb_autotune.quant.rivals.syq import SyqWeight
from tests.builders import tiny_network

SHAPES = [(4, 3, 3, 3), (6, 2, 1, 3), (3, 5, 1, 1), (3, 1, 1, 1), (5, 7), (2, 1)]


def weights(shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (weight * weight.abs()).requires_grad_()


def quantizer_for(weight: Tensor, bits: int) -> SyqWeight:
    quantizer = SyqWeight(bits, weight.shape).double()
    with torch.no_grad():
        quantizer.start(weight)
    return quantizer


def slow_level(w: float, largest: float, bits: int) -> int:
    if bits == 1:
        return 1 if w >= 0 else -1
    return 0 if abs(w) <= 0.05 * largest else 1 if w > 0 else -1


def places(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(np.ndindex(*shape[2:]))


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_value_and_gradients(shape: tuple[int, ...], bits: int) -> None:
    weight = weights(shape)
    quantizer = quantizer_for(weight, bits)
    up = torch.linspace(-1, 2, weight.numel(), dtype=torch.float64).view(shape)
    result = quantizer(weight)
    (result * up).sum().backward()
    assert result.shape == weight.grad.shape == shape
    largest = float(weight.detach().abs().max())
    seen = set()
    for place in places(shape):
        group = [(o, i, *place) for o in range(shape[0]) for i in range(shape[1])]
        alpha = sum(abs(float(weight[at].detach())) for at in group) / len(group)
        to_alpha = 0.0
        for at in group:
            level = slow_level(float(weight[at].detach()), largest, bits)
            seen.add(level)
            assert float(result[at].detach()) == pytest.approx(alpha * level)
            factor = alpha if level else 1.0
            assert float(weight.grad[at]) == pytest.approx(factor * float(up[at]))
            to_alpha += float(up[at]) * level
        assert float(quantizer.alpha.grad[(0, 0, *place)]) == pytest.approx(to_alpha)
    assert len(seen) == min(2**bits, 3) or weight.numel() < 20


def test_the_gradient_of_alpha_is_the_true_one() -> None:
    weight = weights((2, 3, 2, 2)).detach()
    quantizer = quantizer_for(weight, 2)

    def weighed(alpha: Tensor) -> Tensor:
        return torch.func.functional_call(quantizer, {"alpha": alpha}, (weight,))

    assert torch.autograd.gradcheck(weighed, (quantizer.alpha,))


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_codes(shape: tuple[int, ...], bits: int) -> None:
    weight = weights(shape).detach()
    quantizer = quantizer_for(weight, bits)
    codes, stored = quantizer.codes(weight), quantizer.stored(weight)
    largest = float(weight.abs().max())
    levels = [slow_level(w, largest, bits) for w in weight.flatten().tolist()]
    expected = [(k + 1) // 2 if bits == 1 else k + 1 for k in levels]
    assert codes.flatten().tolist() == expected
    assert torch.equal(quantizer.decode(codes, stored), quantizer(weight))
    assert stored["alpha"].shape == (len(places(shape)),)


def test_every_code_means_something() -> None:
    codes = torch.arange(4, dtype=torch.uint8).view(1, 4)
    quantizer = SyqWeight(2, torch.Size((1, 4)))
    decoded = quantizer.decode(codes, {"alpha": torch.tensor([0.5])})
    assert decoded.tolist() == [[-0.5, 0.0, 0.5, 0.0]]


@pytest.mark.parametrize("bits", [1, 2])
def test_weights_that_are_all_zero(bits: int) -> None:
    weight = torch.zeros(2, 3, requires_grad=True)
    quantizer = SyqWeight(bits, weight.shape)
    with torch.no_grad():
        quantizer.start(weight)
    result = quantizer(weight)
    result.sum().backward()
    assert torch.equal(result, torch.zeros(2, 3))
    assert weight.grad.isfinite().all()
    assert quantizer.alpha.grad.tolist() == [[6.0 if bits == 1 else 0.0]]


def test_alpha_starts_from_the_float_layer() -> None:
    layer = nn.Conv2d(4, 6, 3, groups=2)
    alpha = SyqWeight.from_float(layer, 1).stored()["alpha"].view(3, 3)
    assert torch.allclose(alpha, layer.weight.abs().mean(dim=(0, 1)))


@pytest.mark.parametrize(("bits", "codes"), [(1, 17), (2, 34)])
def test_size(bits: int, codes: int) -> None:
    """135 weights, and a scale for each of the 9 places of the kernel."""
    network = quantize(tiny_network(), bits, bits, "syq", torch.zeros(1, 1, 8, 8))
    table = profile(network, (1, 8, 8)).set_index("name")
    assert table.loc["3", "bytes"] == codes + 9 * 4
