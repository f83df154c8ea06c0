"""BNN, BWN and XNOR-Net against slow versions of their formulas."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slb_autotune.cost import profile
from slb_autotune.quant import quantize
from slb_autotune.quant.rivals.binary import BnnWeight, BwnWeight, ClippedSign, XnorSign
from tests.builders import tiny_network

SHAPES = [(4, 3, 3, 3), (3, 2, 1, 1), (3, 1, 1, 1), (5, 7), (2, 1)]
X = torch.tensor([-3.0, -1.0, -0.4, -0.0, 0.0, 0.2, 1.0, 1.0001, 5.0])


def sign(x: float) -> float:
    return 1.0 if x >= 0 else -1.0


def weights(shape: tuple[int, ...]) -> Tensor:
    """Some of them beyond 1, one of them 0."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight[0].view(-1)[0] = 0.0
    return weight.requires_grad_()


def upstream(weight: Tensor) -> Tensor:
    return torch.linspace(-1, 2, weight.numel(), dtype=torch.float64).view(weight.shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_bnn(shape: tuple[int, ...]) -> None:
    weight, quantizer = weights(shape), BnnWeight(1, torch.Size(shape))
    result = quantizer(weight)
    (result * upstream(weight)).sum().backward()
    values = weight.flatten().tolist()
    assert result.flatten().tolist() == [sign(w) for w in values]
    pairs = zip(values, upstream(weight).flatten().tolist(), strict=True)
    assert weight.grad.flatten().tolist() == [u if abs(w) <= 1 else 0 for w, u in pairs]
    assert torch.equal(quantizer.decode(quantizer.codes(weight), {}).double(), result)
    assert quantizer.stored(weight) == {}


@pytest.mark.parametrize("shape", SHAPES)
def test_bwn_value_and_gradient(shape: tuple[int, ...]) -> None:
    weight, quantizer = weights(shape), BwnWeight(1, torch.Size(shape))
    result = quantizer(weight)
    (result * upstream(weight)).sum().backward()
    alphas = quantizer.stored(weight.detach())["alpha"]
    assert alphas.shape == (shape[0],)
    for f in range(shape[0]):
        w = weight[f].detach().flatten().tolist()
        up = upstream(weight)[f].flatten().tolist()
        n = len(w)
        alpha = sum(abs(x) for x in w) / n
        assert float(alphas[f]) == pytest.approx(alpha)
        assert result[f].flatten().tolist() == pytest.approx([alpha * sign(x) for x in w])
        shared = sum(u * sign(x) for u, x in zip(up, w, strict=True)) / n
        # d|W|/dW is 0 at 0.
        expected = [
            np.sign(x) * shared + alpha * u * (abs(x) <= 1) for u, x in zip(up, w, strict=True)
        ]
        assert weight.grad[f].flatten().tolist() == pytest.approx(expected)
    decoded = quantizer.decode(quantizer.codes(weight), quantizer.stored(weight))
    assert torch.allclose(decoded, result)


def test_bwn_is_the_nearest_scaled_sign() -> None:
    weight = torch.randn(1, 4, dtype=torch.float64)
    best = float((BwnWeight(1, weight.shape)(weight) - weight).square().sum())
    for signs in itertools.product((-1.0, 1.0), repeat=4):
        for alpha in np.linspace(0, 3, 301):
            other = alpha * torch.tensor(signs, dtype=torch.float64) - weight
            assert best <= float(other.square().sum()) + 1e-12


@pytest.mark.parametrize("kind", [BnnWeight, BwnWeight])
def test_weights_that_are_all_zero(kind: type[BnnWeight]) -> None:
    weight = torch.zeros(2, 3, requires_grad=True)
    quantizer = kind(1, weight.shape)
    result = quantizer(weight)
    result.sum().backward()
    assert torch.equal(result, torch.full((2, 3), 1.0 if kind is BnnWeight else 0.0))
    assert weight.grad.isfinite().all()
    assert torch.equal(quantizer.codes(weight), torch.ones(2, 3, dtype=torch.uint8))


@pytest.mark.parametrize("kind", [ClippedSign, XnorSign])
def test_signs_of_activations(kind: type[ClippedSign]) -> None:
    x = X.clone().requires_grad_()
    result = kind()(x)
    (result * torch.arange(1.0, len(X) + 1)).sum().backward()
    assert result.tolist() == [sign(v) for v in X.tolist()]
    assert x.grad.tolist() == [i * (abs(v) <= 1) for i, v in enumerate(X.tolist(), start=1)]


def slow_xnor_conv(x: np.ndarray, layer: nn.Conv2d) -> np.ndarray:
    """sign(x) (*) alpha sign(W), times K, plus the bias; K = the window's mean of |x|."""
    weight = layer.weight.detach().numpy()
    out, inner, high, wide = weight.shape
    (sy, sx), (py, px), (dy, dx) = layer.stride, layer.padding, layer.dilation
    count, _, rows, columns = x.shape
    height = (rows + 2 * py - dy * (high - 1) - 1) // sy + 1
    width = (columns + 2 * px - dx * (wide - 1) - 1) // sx + 1
    result = np.zeros((count, out, height, width))
    for n, o, i, j in np.ndindex(*result.shape):
        alpha = np.abs(weight[o]).mean()
        first = inner * (o // (out // layer.groups))
        product = magnitude = 0.0
        for c, a, b in np.ndindex(inner, high, wide):
            row, column = i * sy - py + a * dy, j * sx - px + b * dx
            if 0 <= row < rows and 0 <= column < columns:
                value = x[n, first + c, row, column]
                product += alpha * sign(weight[o, c, a, b]) * sign(value)
                magnitude += abs(value)
        result[n, o, i, j] = product * magnitude / (inner * high * wide)
    bias = 0.0 if layer.bias is None else layer.bias.detach().numpy()[:, None, None]
    return result + bias


@pytest.mark.parametrize(
    ("channels", "out", "options"),
    [
        (2, 3, {"kernel_size": 3, "padding": 1}),
        (4, 6, {"kernel_size": 3, "padding": 1, "groups": 2, "bias": False}),
        (4, 4, {"kernel_size": (3, 1), "padding": (2, 0), "groups": 4}),
        (3, 2, {"kernel_size": 3, "stride": 2, "padding": 1}),
        (3, 2, {"kernel_size": 2, "stride": (1, 2), "dilation": (2, 1)}),
        (5, 2, {"kernel_size": 1}),
    ],
)
def test_xnor_convolution(channels: int, out: int, options: dict[str, object]) -> None:
    torch.manual_seed(1)
    layer = nn.Conv2d(channels, out, **options).double()
    x = torch.randn(2, channels, 6, 5, dtype=torch.float64)
    quantised = BwnWeight.from_float(layer, 1)
    quantised.activation = XnorSign()
    expected = slow_xnor_conv(x.numpy(), layer)
    for mode in (True, False):
        result = quantised.train(mode)(x)
        assert result.shape == expected.shape
        assert np.allclose(result.detach().numpy(), expected)
    last = x.to(memory_format=torch.channels_last)
    assert np.allclose(quantised(last).detach().numpy(), expected)


def test_xnor_convolution_that_pads_by_name() -> None:
    layer = nn.Conv2d(2, 3, 3, padding="same").double()
    quantised = BwnWeight.from_float(layer, 1)
    quantised.activation = XnorSign()
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    layer.padding = (1, 1)
    assert np.allclose(quantised(x).detach().numpy(), slow_xnor_conv(x.numpy(), layer))


def test_xnor_linear() -> None:
    layer = nn.Linear(4, 3).double()
    quantised = BwnWeight.from_float(layer, 1)
    quantised.activation = XnorSign()
    x = torch.randn(5, 4, dtype=torch.float64)
    result = quantised(x).detach()
    for n, o in np.ndindex(5, 3):
        row, weight = x[n].tolist(), layer.weight[o].tolist()
        alpha = sum(map(abs, weight)) / 4
        product = sum(sign(v) * sign(w) for v, w in zip(row, weight, strict=True))
        K = sum(map(abs, row)) / 4
        expected = alpha * product * K + float(layer.bias[o].detach())
        assert float(result[n, o]) == pytest.approx(expected)


def test_xnor_linear_on_sequences() -> None:
    quantised = BwnWeight.from_float(nn.Linear(4, 3), 1)
    quantised.activation = XnorSign()
    x = torch.randn(2, 5, 4)
    assert torch.allclose(quantised(x), torch.stack([quantised(row) for row in x]))


def test_the_input_scale_is_a_constant_of_the_backward_pass() -> None:
    layer = BwnWeight.from_float(nn.Conv2d(2, 3, 3, padding=1, bias=False).double(), 1)
    layer.activation = XnorSign()
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    up = torch.randn(1, 3, 4, 4, dtype=torch.float64)
    K = layer.activation.output_factor(x, layer)
    assert not K.requires_grad
    (grad,) = torch.autograd.grad(layer(x), x, up)
    weight = layer.quantized_weight()
    back = torch.nn.functional.conv_transpose2d(up * K, weight, padding=1)
    assert torch.allclose(grad, back * (x.abs() <= 1))


def test_bnn_at_inference_in_float64() -> None:
    layer = BnnWeight.from_float(nn.Conv2d(2, 3, 3).double(), 1).eval()
    assert layer(torch.randn(1, 2, 4, 4, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(("method", "floats"), [("bnn", 0), ("bwn", 5), ("xnor", 5)])
def test_size(method: str, floats: int) -> None:
    """135 weights of a bit are 17 bytes; BWN has a scale for each of the 5 filters."""
    inputs = 32 if method == "bwn" else 1
    network = quantize(tiny_network(), 1, inputs, method, torch.zeros(1, 1, 8, 8))
    table = profile(network, (1, 8, 8)).set_index("name")
    assert table.loc["3", "bytes"] == 17 + 4 * floats
    assert "3.activation" not in table.index
