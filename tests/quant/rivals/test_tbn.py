"""TBN: the threshold and the three values by loops, the gradient, and bytes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from slb_autotune.cost import profile
from slb_autotune.quant import quantize
from slb_autotune.quant.rivals.tbn import TernaryActivation


@pytest.mark.parametrize("shape", [(3, 4, 5, 5), (6, 7), (4, 1)])
def test_values_and_gradient(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    x *= torch.arange(1, shape[0] + 1).view(-1, *[1] * (len(shape) - 1))
    grad = torch.randn(*shape, generator=generator, dtype=torch.float64)
    x.requires_grad_()
    y = TernaryActivation()(x)
    y.backward(grad)
    for example in range(shape[0]):
        values = x[example].flatten().tolist()
        threshold = 0.4 * sum(abs(value) for value in values) / len(values)
        for i, value in enumerate(values):
            expected = 1 if value > threshold else -1 if value < -threshold else 0
            assert y[example].flatten()[i] == expected
            passed = grad[example].flatten()[i] if -1 <= value <= 1 else 0.0
            assert x.grad[example].flatten()[i] == passed
    if shape[1] > 1:
        assert y.unique().tolist() == [-1.0, 0.0, 1.0]


def test_threshold_by_hand() -> None:
    # The mean of |x| is 2.5, the threshold 1; a value at it is 0.
    x = torch.tensor([[1.0, -1.0, 1.5, -6.5], [0.0, 0.0, 0.0, 0.0]])
    assert TernaryActivation()(x).tolist() == [[0.0, 0.0, 1.0, -1.0], [0.0] * 4]


def test_gradient_ends_at_one() -> None:
    x = torch.tensor([[1.0, -1.0, 1.001, -1.001, 0.0]], requires_grad=True)
    TernaryActivation()(x).sum().backward()
    assert x.grad.tolist() == [[1.0, 1.0, 0.0, 0.0, 1.0]]


def test_an_example_does_not_depend_on_its_batch() -> None:
    x = torch.randn(4, 3, 5, 5) * torch.tensor([1.0, 9.0, 0.1, 3.0]).view(-1, 1, 1, 1)
    quantizer = TernaryActivation()
    for mode in (True, False):
        whole = quantizer.train(mode)(x)
        assert torch.equal(whole, torch.cat([quantizer(one) for one in x.split(1)]))


def test_bytes() -> None:
    # The second convolution: 8 x 8 x 3 x 3 signs and 8 scales; nothing is stored for the input.
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8)
    )
    table = profile(quantize(network, 1, 2, "tbn", torch.zeros(1, 1, 8, 8)), (1, 8, 8))
    own = table[table["name"].str.startswith("2")]
    assert own["bytes"].sum() == 576 // 8 + 4 * 8
    assert list(own["activation_bits"]) == [2]
