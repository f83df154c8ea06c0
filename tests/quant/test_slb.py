"""SLB's layers: W_c and W_q against a slow version written from the paper's equations."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from slb_autotune.errors import ConfigError
from slb_autotune.quant import SLBConv2d, SLBLinear, network_state, set_temperature
from slb_autotune.quant.slb import from_float, logits_from_weight

ALL_BITS = [1, 2, 3, 4, 8]


def slow_weights(A: torch.Tensor, T: float) -> tuple[torch.Tensor, torch.Tensor]:
    """eq_prob, eq:wc and eq:wq, one weight at a time, in plain Python."""
    m = A.shape[0]
    values = [-1 + 2 * i / (m - 1) for i in range(m)]
    columns = A.double().reshape(m, -1).t().tolist()
    continuous, quantised = [], []
    for a in columns:
        top = max(a)
        powers = [math.exp(T * (x - top)) for x in a]
        P = [power / sum(powers) for power in powers]
        continuous.append(sum(p * v for p, v in zip(P, values, strict=True)))
        quantised.append(values[a.index(top)])
    shape = A.shape[1:]
    return (
        torch.tensor(continuous, dtype=torch.float64).view(shape),
        torch.tensor(quantised, dtype=torch.float64).view(shape),
    )


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("T", [0.01, 1.0, 30.0, 1000.0])
def test_weights_equal_the_slow_version(bits: int, T: float) -> None:
    layer = SLBConv2d(4, 6, 3, bits=bits, groups=2).double()
    layer.temperature = T
    continuous, quantised = slow_weights(layer.logits.detach(), T)
    assert (layer.continuous_weight() - continuous).abs().max() < 1e-12
    assert (layer.quantized_weight() - quantised).abs().max() < 1e-15


@pytest.mark.parametrize("bits", ALL_BITS)
def test_V_and_T_are_exact_in_every_precision(bits: int) -> None:
    layer = SLBLinear(3, 2, bits=bits)
    layer.temperature = 0.1
    V = torch.linspace(-1, 1, 2**bits, dtype=torch.float64)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float64):
        layer.to(dtype)
        assert torch.equal(layer.values, V.to(dtype))
        codes = layer.codes()
        assert torch.equal(layer.quantized_weight(), V.to(dtype)[codes.long()])
        assert torch.equal(layer.decode(codes, {}), V.to(dtype)[codes.long()])
    exact, _ = slow_weights(layer.logits.detach(), 0.1)
    assert (layer.continuous_weight() - exact).abs().max() < 1e-12


def test_T_is_a_float_that_can_be_set_and_outlives_a_move() -> None:
    layer = SLBConv2d(2, 2, 1, bits=2)
    assert layer.temperature == 1.0
    set_temperature(layer, 1e5)
    layer.half()
    assert layer.temperature == 1e5
    assert isinstance(layer.temperature, float)
    hard = layer.continuous_weight()  # float16 has no 1e5, and would give NaN
    assert torch.equal(hard.abs() <= 1, torch.ones_like(hard, dtype=torch.bool))


def test_an_emptied_layer_has_its_V_and_T_again() -> None:
    with torch.device("meta"):
        layer = SLBConv2d(2, 2, 3, bits=2)
    layer.temperature = 3.0
    layer.to_empty(device="cpu")
    assert torch.equal(layer.values, SLBConv2d(2, 2, 3, bits=2).values)
    layer.reset_parameters()
    W_c, W_q = slow_weights(layer.logits.detach(), 3.0)
    assert torch.allclose(layer.continuous_weight().double(), W_c, atol=1e-6)
    assert torch.allclose(layer.quantized_weight().double(), W_q, atol=1e-6)


def test_copies_are_whole_and_their_own() -> None:
    layer = SLBConv2d(2, 3, 3, bits=2, bias=True)
    layer.temperature = 7.0
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.temperature == 7.0
        assert torch.equal(other.continuous_weight(), layer.continuous_weight())
        other.temperature = 1.0
        assert not torch.equal(other.continuous_weight(), layer.continuous_weight())


@pytest.mark.parametrize("bits", ALL_BITS)
def test_the_gap_vanishes_as_T_rises(bits: int) -> None:
    layer = SLBLinear(20, 30, bits=bits).double()
    gaps = []
    for T in (1.0, 1e2, 1e4, 1e6):
        layer.temperature = T
        gaps.append(float((layer.quantized_weight() - layer.continuous_weight()).abs().mean()))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", [1, 2])
def test_any_dtype(dtype: torch.dtype, bits: int) -> None:
    layer = SLBLinear(6, 5, bits=bits).to(dtype)
    layer.temperature = 200.0
    W_c = layer.continuous_weight()
    W_c.sum().backward()
    assert W_c.dtype == layer.quantized_weight().dtype == layer.logits.grad.dtype == dtype
    assert layer.logits.grad.isfinite().all()
    exact = slow_weights(layer.logits.detach(), 200.0)[0]
    tolerance = {torch.float16: 0.05, torch.bfloat16: 0.2}.get(dtype, 1e-5)
    assert (W_c.double() - exact).abs().max() < tolerance


@pytest.mark.parametrize("bits", [1, 4])
def test_mixed_precision_leaves_W_c_exact(bits: int) -> None:
    layer = SLBLinear(6, 5, bits=bits)
    layer.temperature = 50.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = layer.continuous_weight()
    assert torch.equal(mixed, layer.continuous_weight())


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_convolution_uses_W_c_in_train_and_W_q_in_eval(groups: int, mode: str) -> None:
    layer = SLBConv2d(4, 8, 3, stride=2, padding=1, groups=groups, bits=2, bias=True)
    nn.init.normal_(layer.bias)
    layer.train(mode == "train")
    x = torch.randn(2, 4, 9, 9)
    weight = layer.continuous_weight() if mode == "train" else layer.quantized_weight()
    assert layer.logits.shape == (4, 8, 4 // groups, 3, 3)
    assert torch.equal(layer(x), F.conv2d(x, weight, layer.bias, 2, 1, 1, groups))


@pytest.mark.parametrize("T", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_that_cannot_be_is_refused(T: float) -> None:
    layer = SLBLinear(3, 3)
    with pytest.raises(ConfigError, match="T must be a positive number; got"):
        set_temperature(nn.Sequential(layer), T)
    assert layer.temperature == 1.0


def test_channels_last_is_for_the_network_and_not_for_A() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), SLBConv2d(4, 6, 3, bits=2))
    A = network[1].logits.detach().clone()
    network.to(torch.float64, memory_format=torch.channels_last)
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(network[1].logits, A.double())
    assert network[1].logits.is_contiguous()


def test_linear_uses_the_same_core() -> None:
    layer = SLBLinear(7, 3, bits=3)
    x = torch.randn(5, 7)
    assert torch.equal(layer(x), F.linear(x, layer.continuous_weight(), layer.bias))
    assert torch.equal(layer.eval()(x), F.linear(x, layer.quantized_weight(), layer.bias))


def test_the_state_overrides_the_mode_and_is_put_back() -> None:
    network = nn.Sequential(SLBLinear(4, 4, bits=1, bias=False)).eval()
    x = torch.randn(2, 4)
    with network_state(network, "continuous"):
        assert torch.equal(network(x), F.linear(x, network[0].continuous_weight()))
    assert network[0].state is None
    network.train()
    with network_state(network, "discrete"):
        assert torch.equal(network(x), F.linear(x, network[0].quantized_weight()))
    assert torch.equal(network(x), F.linear(x, network[0].continuous_weight()))


class TestW_qIsNeverStale:
    """Whatever changes A, and however it does, the next W_q is of the new A."""

    def check(self, layer: SLBLinear) -> None:
        _, expected = slow_weights(layer.logits.detach(), 1.0)
        assert torch.allclose(layer.quantized_weight().double(), expected, atol=1e-6)
        x = torch.randn(2, 6).to(layer.logits.dtype)
        y = F.linear(x.double(), expected, layer.bias.double())
        assert torch.allclose(layer(x).double(), y, atol=1e-5)

    def layer(self) -> SLBLinear:
        layer = SLBLinear(6, 5, bits=2).eval()
        layer(torch.randn(2, 6))
        return layer

    @pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
    @pytest.mark.parametrize("fused", [False, True])
    def test_after_a_step_of_an_optimiser(self, kind: type, fused: bool) -> None:
        layer = self.layer()
        layer.logits.grad = torch.randn_like(layer.logits)
        kind([layer.logits], lr=10.0, fused=fused).step()
        self.check(layer)

    def test_after_loading_and_replacing(self) -> None:
        layer = self.layer()
        layer.load_state_dict(SLBLinear(6, 5, bits=2).state_dict())
        self.check(layer)
        layer.logits.data = torch.randn_like(layer.logits)
        self.check(layer)
        layer.logits.data.neg_()
        self.check(layer)
        layer.logits = nn.Parameter(torch.randn_like(layer.logits))
        self.check(layer)
        self.check(layer.double())

    def test_under_inference_mode(self) -> None:
        layer = self.layer()
        with torch.inference_mode():
            layer(torch.randn(2, 6))
            layer.logits.neg_()
            self.check(layer)


def test_V_and_T_are_no_part_of_the_state_dict() -> None:
    assert set(SLBLinear(6, 5, bits=2).state_dict()) == {"logits", "bias"}


@pytest.mark.parametrize("bits", [1, 4])
def test_A_starts_kaiming_normal_in_every_slice(bits: int) -> None:
    layer = SLBConv2d(64, 64, 3, bits=bits)
    for slice_ in layer.logits.detach():
        assert float(slice_.std()) == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.02)
    grouped = SLBConv2d(64, 64, 3, groups=4, bits=bits)
    assert float(grouped.logits.std()) == pytest.approx(math.sqrt(2 / (16 * 9)), rel=0.03)
    assert float(SLBConv2d(64, 64, 3, spread=0.5).logits.std()) == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("bits", ALL_BITS)
def test_A_from_weights_has_the_nearest_value_and_the_spread_asked_for(bits: int) -> None:
    weight = torch.randn(40, 30, dtype=torch.float64)
    A = logits_from_weight(weight, bits, spread=0.3)
    assert float(A.std()) == pytest.approx(0.3, rel=1e-4)
    values = torch.tensor(np.linspace(-1, 1, 2**bits))
    chosen = values[A.argmax(0)]
    # The best scale for these values; a last step of the search may be left to go.
    scale = float((weight * chosen).sum() / chosen.square().sum())
    distances = (weight / scale).unsqueeze(0) - values.view(-1, 1, 1)
    nearest = values[distances.abs().argmin(0)]
    assert (nearest == chosen).float().mean() > 0.995
    if bits == 1:
        assert torch.equal(chosen, weight.sign())


def test_from_float_keeps_shape_bias_and_dtype() -> None:
    conv = nn.Conv2d(4, 8, (3, 1), stride=(2, 1), padding=(1, 0), dilation=1, groups=2).double()
    layer = from_float(conv, 2, keep_weights=True, spread=None)
    assert isinstance(layer, SLBConv2d)
    assert layer.logits.dtype == torch.float64
    assert torch.equal(layer.bias, conv.bias)
    x = torch.randn(1, 4, 8, 8, dtype=torch.float64)
    assert layer(x).shape == conv(x).shape
    linear = from_float(nn.Linear(5, 3), 1, keep_weights=False, spread=None)
    assert isinstance(linear, SLBLinear)


def test_all_zero_weights_do_no_harm() -> None:
    assert logits_from_weight(torch.zeros(3, 3), 2, 0.1).isfinite().all()


@pytest.mark.parametrize("bits", [0, 5, 16, 32])
def test_other_bits_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match=r"weight_bits of slb must be one of \(1, 2, 3, 4, 8\)"):
        SLBConv2d(1, 1, 1, bits=bits)


def test_groups_must_divide_the_channels() -> None:
    with pytest.raises(ConfigError, match="groups must divide the channels; got 3, 4 and 2"):
        SLBConv2d(3, 4, 1, groups=2)


def test_a_copy_of_the_buffers_is_a_copy_of_T() -> None:
    """As averaged models and broadcasts do."""
    layer, other = (SLBConv2d(2, 3, 3, bits=2) for _ in range(2))
    layer.temperature, other.temperature = 0.01, 50.0
    with torch.no_grad():
        layer.T.copy_(other.T)
    assert layer.temperature == 50.0
    assert layer.double().float().temperature == 50.0
    assert torch.equal(layer.T, torch.tensor(50.0))


def test_T_keeps_the_digits_it_was_given() -> None:
    layer = SLBConv2d(2, 3, 3, bits=2)
    layer.temperature = 0.01
    assert layer.temperature == 0.01
    assert torch.tensor(0.01, dtype=torch.float64) == layer.double().T


def test_a_copy_made_under_inference_mode_takes_a_temperature() -> None:
    layer = SLBConv2d(2, 3, 3, bits=2)
    with torch.inference_mode():
        other = copy.deepcopy(layer)
    other.temperature = 7.0
    assert other.temperature == 7.0
