"""Gap, frozen fraction, entropy and flip rate against slow versions."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from slb_autotune.quant import SLBConv2d, SLBLinear, layer_diagnostics
from slb_autotune.quant.convert import quantize
from slb_autotune.quant.diagnostics import BINS, all_codes, weight_histograms
from slb_autotune.quant.states import set_temperature


def network() -> nn.Module:
    return nn.Sequential(SLBConv2d(2, 3, 3, bits=1), nn.Flatten(), SLBLinear(12, 4, bits=2))


@pytest.mark.parametrize("T", [0.1, 5.0, 60.0])
def test_against_the_definitions(T: float) -> None:
    net = network()
    set_temperature(net, T)
    table = layer_diagnostics(net).set_index("name")
    for name, layer in (("0", net[0]), ("2", net[2])):
        P = torch.softmax(T * layer.logits.detach().double(), 0)
        gap = (layer.quantized_weight() - layer.continuous_weight()).abs().mean()
        assert table.loc[name, "quantization_gap"] == pytest.approx(float(gap), abs=1e-6)
        frozen = float((P.amax(0) > 0.999).double().mean())
        assert table.loc[name, "frozen_fraction"] == pytest.approx(frozen)
        entropy = float(-(P * P.clamp_min(1e-300).log()).sum(0).mean())
        assert table.loc[name, "entropy"] == pytest.approx(entropy, abs=1e-6)
        assert table.loc[name, "weights"] == layer.weight_shape.numel()
        assert table.loc[name, "bits"] == layer.bits


def test_the_total_weighs_layers_by_their_weights() -> None:
    table = layer_diagnostics(network())
    layers, total = table.iloc[:-1], table.iloc[-1]
    assert total["name"] == "total"
    expected = (layers["quantization_gap"] * layers["weights"]).sum() / layers["weights"].sum()
    assert total["quantization_gap"] == pytest.approx(expected)
    assert total["weights"] == 54 + 48


def test_entropy_at_T_zero_and_infinity() -> None:
    net = network()
    set_temperature(net, 1e-9)
    table = layer_diagnostics(net)
    assert table["entropy"].tolist()[:2] == pytest.approx([math.log(2), math.log(4)])
    set_temperature(net, 1e7)
    assert layer_diagnostics(net)["frozen_fraction"].tolist() == pytest.approx([1, 1, 1])


def test_flip_rate_counts_changed_weights() -> None:
    net = network()
    before = all_codes(net)
    assert layer_diagnostics(net, before)["flip_rate"].tolist() == [0, 0, 0]
    with torch.no_grad():
        flat = net[0].logits.view(2, -1)
        flat[:, :27] = flat[:, :27].flip(0)
    table = layer_diagnostics(net, before)
    assert table["flip_rate"].tolist() == pytest.approx([0.5, 0, 27 / 102])
    assert layer_diagnostics(net)["flip_rate"].isna().all()


def test_a_network_without_slb_layers() -> None:
    table = layer_diagnostics(nn.Linear(2, 2))
    assert len(table) == 1
    assert table.loc[0, "weights"] == 0


@pytest.mark.parametrize("T", [0.1, 5.0, 1e7])
def test_histograms_count_the_continuous_weights(T: float) -> None:
    net = network()
    set_temperature(net, T)
    found = weight_histograms(net, epoch=7)
    assert list(found) == ["0", "2"]
    for name, row in found.items():
        W_c = net.get_submodule(name).continuous_weight().detach().double().numpy()
        counts = np.histogram(W_c, BINS, (-1, 1))[0]
        assert row.dtype == torch.float32
        assert row[0].tolist() == [7, 1, *counts]
        assert counts.sum() == W_c.size


@pytest.mark.parametrize("value", [1.0, 0.0, math.nan, math.inf])
def test_a_rivals_histogram_is_of_its_float_weight_and_reaches_to_the_largest(
    value: float,
) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 3, 3))
    net = quantize(net, 1, method="dorefa", example_input=torch.zeros(1, 1, 8, 8))
    weight = net.get_submodule("1").weight
    with torch.no_grad():
        weight.mul_(value)
        if value == 1.0:
            weight[0, 0] = -3.0
            weight[1, 1] = math.nan
    ((epoch, reach, *counts),) = weight_histograms(net, epoch=2)["1"].tolist()
    kept = weight.detach()[weight.isfinite()].double().numpy()
    assert (epoch, reach) == (2, 3.0 if value == 1.0 else 1.0)
    assert counts == np.histogram(kept, BINS, (-reach, reach))[0].tolist()
