"""SLB's layers: W_c and W_q against a slow version written from the paper's equations."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from slb_autotune.errors import ConfigError
from slb_autotune.quant import SLBConv2d, SLBLinear, expectation, network_state, set_temperature
from slb_autotune.quant.expectation import argmax_codes, expected_weight, value_set
from slb_autotune.quant.slb import from_float, logits_from_weight, prepare_weights

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
    assert torch.allclose(layer.continuous_weight(), continuous, atol=1e-7)
    assert torch.allclose(layer.quantized_weight(), quantised, atol=1e-7)


class TestPreparedWeights:
    """W_c of all layers at once is what each layer makes for itself, and is never stale."""

    def network(self) -> nn.Sequential:
        torch.manual_seed(0)
        widths = [1, 1, 2, 2, 1, 2, 4]
        return nn.Sequential(*(SLBConv2d(3, 3, 3, padding=1, bits=b) for b in widths))

    def results(self, network: nn.Sequential) -> list[torch.Tensor]:
        network.zero_grad()
        y = network(torch.ones(2, 3, 5, 5).to(memory_format=torch.channels_last))
        y.square().sum().backward()
        return [y.detach(), *(layer.logits.grad.clone() for layer in network)]

    @pytest.mark.parametrize("block", [2**20, 400])
    @pytest.mark.parametrize("small", [2**18, 0])
    def test_the_results_are_the_same(
        self, block: int, small: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        network = self.network()
        expected = self.results(network)
        monkeypatch.setattr(expectation, "_CPU_BLOCK", block)
        monkeypatch.setattr(expectation, "_CPU_SMALL", small)
        monkeypatch.setattr(expectation, "_CPU_SMALL_BACK", small)
        prepare_weights(network)
        assert all(layer._prepared is not None for layer in network)
        for one, other in zip(self.results(network), expected, strict=True):
            assert torch.allclose(one, other, atol=1e-5)

    def test_they_serve_once(self) -> None:
        layer = self.network()[0]
        prepare_weights(nn.ModuleList([layer, copy.deepcopy(layer)]))
        first = layer.continuous_weight()
        assert layer.continuous_weight() is not first
        assert torch.allclose(layer.continuous_weight(), first)

    @pytest.mark.parametrize("change", ["A", "T", "step"])
    def test_a_change_is_seen(self, change: str) -> None:
        network = self.network()
        layer = network[0]
        optimizer = torch.optim.SGD(network.parameters(), 1.0, fused=True)
        self.results(network)
        prepare_weights(network)
        if change == "A":
            with torch.no_grad():
                layer.logits.neg_()
        elif change == "T":
            layer.temperature = 7.0
        else:
            optimizer.step()
        expected = expected_weight(layer.logits, layer.values, layer.temperature)
        assert torch.equal(layer.continuous_weight(), expected)

    def test_only_training_prepares_them(self) -> None:
        network = self.network()
        with torch.no_grad():
            prepare_weights(network)
        prepare_weights(network.eval())
        network.train()[0].logits.requires_grad_(requires_grad=False)
        network[1].requires_grad_(requires_grad=False)
        prepare_weights(network)
        made = [layer._prepared is not None for layer in network]
        assert made == [False, False, True, True, True, True, True]

    def test_a_network_with_prepared_weights_can_be_copied(self) -> None:
        network = self.network()
        prepare_weights(network)
        assert copy.deepcopy(network)[0]._prepared is None


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


class TestCacheOfW_q:
    def fresh(self, layer: SLBLinear) -> torch.Tensor:
        return layer.values[argmax_codes(layer.logits.detach()).int()]

    def layer(self) -> SLBLinear:
        layer = SLBLinear(6, 5, bits=2).eval()
        layer.quantized_weight()
        return layer

    def test_it_is_kept_in_eval_mode(self) -> None:
        layer = self.layer()
        assert layer.quantized_weight() is layer.quantized_weight()

    def test_it_is_not_kept_in_train_mode(self) -> None:
        layer = self.layer().train()
        assert layer.quantized_weight() is not layer.quantized_weight()

    def test_a_step_of_each_optimiser_is_seen(self) -> None:
        for make in (torch.optim.SGD, torch.optim.Adam):
            for fused in (False, True):
                layer = self.layer()
                layer.logits.grad = torch.randn_like(layer.logits)
                make([layer.logits], lr=10.0, fused=fused).step()
                assert torch.equal(layer.quantized_weight(), self.fresh(layer))

    def test_loading_and_replacing_are_seen(self) -> None:
        layer = self.layer()
        layer.load_state_dict(SLBLinear(6, 5, bits=2).state_dict())
        assert torch.equal(layer.quantized_weight(), self.fresh(layer))
        layer.logits.data = torch.randn_like(layer.logits)
        assert torch.equal(layer.quantized_weight(), self.fresh(layer))
        layer.logits = nn.Parameter(torch.randn_like(layer.logits))
        assert torch.equal(layer.quantized_weight(), self.fresh(layer))

    def test_an_address_used_again_is_seen(self) -> None:
        layer = self.layer()
        for _ in range(20):
            layer.logits = nn.Parameter(torch.randn_like(layer.logits))
            assert torch.equal(layer.quantized_weight(), self.fresh(layer))

    def test_another_dtype_and_a_copy_are_seen(self) -> None:
        layer = self.layer()
        assert layer.double().quantized_weight().dtype == torch.float64
        other = copy.deepcopy(layer)
        with torch.no_grad():
            other.logits.neg_()
        assert torch.equal(other.quantized_weight(), self.fresh(other))
        assert torch.equal(layer.quantized_weight(), self.fresh(layer))

    def test_it_is_no_part_of_the_state_dict(self) -> None:
        assert set(self.layer().state_dict()) == {"logits", "bias"}


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
    A = logits_from_weight(weight, bits, spread=0.3).float()
    assert float(A.std()) == pytest.approx(0.3, rel=1e-4)
    values = value_set(bits).double()
    scales = [weight.abs().max() * k / 80 for k in range(1, 81)]

    def rounded(s: torch.Tensor) -> torch.Tensor:
        distances = (weight / s).unsqueeze(0) - values.view(-1, 1, 1)
        return values[distances.abs().argmin(0)]

    best = min(scales, key=lambda s: float((s * rounded(s) - weight).square().mean()))
    assert torch.equal(values[argmax_codes(A).int()], rounded(best))
    if bits == 1:
        assert torch.equal(values[argmax_codes(A).int()], weight.sign())


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
