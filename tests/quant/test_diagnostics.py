"""Gap, frozen fraction, entropy and flip rate against slow versions."""

import math

import pytest
import torch
from torch import nn

from slb_autotune.quant import SLBConv2d, SLBLinear, layer_diagnostics
from slb_autotune.quant.diagnostics import all_codes
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
