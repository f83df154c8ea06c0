from __future__ import annotations

import pickle
import resource
import sys

import pandas as pd
import pytest
import torch

from slb_autotune.config.trial import TrialConfig
from slb_autotune.cost import (
    Cost,
    average_weight_bits,
    bitops,
    check_memory,
    estimate,
    lay_out,
    profile,
    size_bytes,
    training_bytes,
)
from slb_autotune.data.base import DataInfo
from slb_autotune.errors import ConfigError, InputError
from slb_autotune.quant import quantize
from tests.builders import CIFAR, tiny_config, tiny_network

COLUMNS = ["name", "kind", "params", "weight_bits", "activation_bits", "bytes", "macs", "bitops"]
PATCH = DataInfo("super_resolution", in_channels=1, num_classes=None, image_size=41)

# The tiny network: weights, and multiply-accumulates on an 8x8 image.
FIRST, SECOND, LINEAR = 9 * 1 * 3, 9 * 3 * 5, 5 * 10
FIRST_MACS, SECOND_MACS = FIRST * 8 * 8, SECOND * 6 * 6

# ResNet20's quantised convolutions: weights, then macs on 32x32 images.
STAGES = (6 * 9 * 16 * 16, 9 * 16 * 32 + 5 * 9 * 32 * 32, 9 * 32 * 64 + 5 * 9 * 64 * 64)
STAGE_MACS = STAGES[0] * 32 * 32 + STAGES[1] * 16 * 16 + STAGES[2] * 8 * 8
RESNET20_FLOATS = 9 * 3 * 16 + 2 * (7 * 16 + 6 * 32 + 6 * 64) + 64 * 10 + 10


def tiny_profile(weight_bits=1, activation_bits=32, bias=False, **options) -> pd.DataFrame:
    network = quantize(tiny_network(bias), weight_bits, activation_bits, **options)
    return profile(network, (1, 8, 8)).set_index("name")


def cost_of(network: str, info: DataInfo, **changes) -> Cost:
    data = "cifar10" if info is CIFAR else "photos"
    values = {"network.name": network, "data.name": data, **changes}
    return estimate(TrialConfig.from_mapping(values), info)


def test_resnet20_of_one_bit_takes_43240_bytes():
    expected = sum(STAGES) // 8 + 4 * RESNET20_FLOATS
    assert cost_of("resnet20", CIFAR).size_bytes == expected == 43_240


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_resnet20_of_other_bits(bits):
    cost = cost_of("resnet20", CIFAR, weight_bits=bits)
    assert cost.size_bytes == sum(STAGES) * bits // 8 + 4 * RESNET20_FLOATS
    assert cost.average_weight_bits == bits


def test_the_float_network_takes_4_bytes_per_parameter():
    cost = cost_of("resnet20", CIFAR, method="float")
    assert cost.size_bytes == 4 * 269_722
    assert cost.average_weight_bits == 32


def test_bitops_of_resnet20_by_hand():
    float_macs = 9 * 3 * 16 * 32 * 32 + 64 * 10
    cost = cost_of("resnet20", CIFAR, weight_bits=2, activation_bits=4)
    assert cost.bitops == STAGE_MACS * 2 * 4 + float_macs * 32 * 32


def test_one_row_per_module_that_holds_numbers():
    table = profile(quantize(tiny_network(), 1, 4), (1, 8, 8))
    assert list(table.columns) == COLUMNS
    assert table.to_numpy().tolist() == [
        ["0", "conv", FIRST, 32, 32, 4 * FIRST, FIRST_MACS, FIRST_MACS * 32 * 32],
        ["1", "norm", 6, 32, 32, 8 * 3, 0, 0],
        ["3", "conv", SECOND, 1, 4, 17, SECOND_MACS, SECOND_MACS * 1 * 4],
        ["4", "norm", 10, 32, 32, 8 * 5, 0, 0],
        ["8", "linear", LINEAR + 10, 32, 32, 4 * (LINEAR + 10), LINEAR, LINEAR * 32 * 32],
    ]
    assert size_bytes(table) == 4 * FIRST + 24 + 17 + 40 + 240
    assert bitops(table) == (FIRST_MACS + LINEAR) * 1024 + SECOND_MACS * 4


@pytest.mark.parametrize(("bits", "expected"), [(1, 17), (2, 34), (3, 51), (4, 68), (8, 135)])
def test_a_layer_takes_whole_bytes(bits, expected):
    # 135 weights: 16.9, 33.75, 50.6 and 67.5 bytes are rounded up.
    row = tiny_profile(bits).loc["3"]
    assert (row["bytes"], row["params"], row["weight_bits"]) == (expected, SECOND, bits)


def test_a_layer_that_stays_float_takes_4_bytes_per_weight():
    row = tiny_profile(32).loc["3"]
    assert (row["bytes"], row["bitops"]) == (4 * SECOND, SECOND_MACS * 32 * 32)


def test_a_bias_is_counted_in_float():
    row = tiny_profile(1, bias=True).loc["3"]
    assert (row["bytes"], row["params"]) == (17 + 4 * 5, SECOND + 5)
    assert row["macs"] == SECOND_MACS


def test_a_quantised_linear_layer():
    row = tiny_profile(2, include_linear=True).loc["8"]
    assert (row["kind"], row["params"]) == ("linear", LINEAR + 10 + 1)
    # ceil(50 * 2 / 8) bytes, ten biases and, for the last layer, one output scale.
    assert row["bytes"] == 13 + 4 * 10 + 4
    assert row["bitops"] == LINEAR * 2 * 32


def test_pact_counts_its_clipping_level():
    table = tiny_profile(1, 4, activation="pact")
    alpha = table.loc["3.activation"]
    assert (alpha["kind"], alpha["params"], alpha["bytes"]) == ("pact", 1, 4)
    assert table["bytes"].sum() == tiny_profile(1, 4)["bytes"].sum() + 4
    pact = cost_of("resnet20", CIFAR, activation_bits=4, activation="pact")
    assert pact.size_bytes == 43_240 + 18 * 4


def test_mixed_bits_by_hand():
    bits = {"*": 1, "layer1.*": 4, "layer3.0.conv1": 32}
    cost = cost_of("resnet20", CIFAR, weight_bits=bits)
    kept = 9 * 32 * 64
    low = sum(STAGES) - STAGES[0] - kept
    weight_bits = STAGES[0] * 4 + kept * 32 + low
    assert cost.size_bytes == weight_bits // 8 + 4 * RESNET20_FLOATS
    assert cost.average_weight_bits == weight_bits / sum(STAGES)


def test_average_weight_bits_counts_the_layers_that_can_be_set():
    network = quantize(tiny_network(), 2)
    assert average_weight_bits(network, ["3"]) == 2
    expected = (2 * SECOND + 32 * FIRST) / (SECOND + FIRST)
    assert average_weight_bits(network, ["0", "3"]) == expected
    assert average_weight_bits(network, []) == 32


def test_vdsr_has_a_state_norm_behind_each_quantised_convolution():
    ends, body = 9 * 64, 9 * 64 * 64
    cost = cost_of("vdsr", PATCH)
    assert cost.size_bytes == 2 * 4 * ends + 18 * (body // 8 + 8 * 64)
    assert cost.bitops == 41 * 41 * (2 * ends * 32 * 32 + 18 * body * 1 * 32)
    assert cost.average_weight_bits == 1


def test_vdsr_with_a_quantised_tail_has_one_output_scale():
    ends, body = 9 * 64, 9 * 64 * 64
    cost = cost_of("vdsr", PATCH, keep_float=[])
    assert cost.size_bytes == 4 * ends + 18 * (body // 8 + 8 * 64) + ends // 8 + 4


def test_vdsr_in_float_has_no_norms():
    assert cost_of("vdsr", PATCH, method="float").size_bytes == 4 * 664_704


def test_prelu_slopes_are_counted():
    slopes = 7 * 16 + 6 * 32 + 6 * 64
    cost = cost_of("resnet20", CIFAR, **{"network.options.order": "conv_prelu_bn"})
    assert cost.size_bytes == 43_240 + 4 * slopes


def test_a_layer_that_runs_twice_is_stored_once_and_computed_twice():
    layer = torch.nn.Conv2d(2, 2, 3, padding=1, bias=False)
    table = profile(torch.nn.Sequential(layer, torch.nn.ReLU(), layer), (2, 4, 4))
    assert len(table) == 1
    assert table["bytes"].item() == 4 * 36
    assert table["macs"].item() == 2 * 36 * 16


@pytest.mark.parametrize("training", [True, False])
def test_profile_leaves_the_network_unchanged(training):
    network = quantize(tiny_network(), 1, 4).train(training)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    profile(network, (1, 8, 8))
    after = network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(module.training is training for module in network.modules())
    # A hook left behind would be a closure, which cannot be pickled.
    assert pickle.dumps(network)


@pytest.mark.parametrize("norm", ["paper", "calibrate"])
def test_the_estimate_is_the_profile_of_the_network_itself(norm):
    config = tiny_config(weight_bits=2, activation_bits=2, **{"norm.mode": norm})
    info = DataInfo("classification", 1, 10, 8)
    layout = lay_out(config, info)
    network = layout.network
    assert len(layout.layers) == 6
    assert all(p.is_meta for p in network.parameters())
    assert all(b.is_meta for b in network.buffers())
    table = profile(network, (1, 8, 8))
    cost = estimate(config, info)
    assert (cost.size_bytes, cost.bitops) == (size_bytes(table), bitops(table))
    assert set(cost.metrics()) == {"size_bytes", "bitops", "average_weight_bits"}


def test_an_8_bit_network_is_estimated_without_its_memory():
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    cost = cost_of("vgg_small", CIFAR, weight_bits=8)
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before
    assert cost.training_bytes > 256 * 4_574_592 * 4
    assert taken < 500e6


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [
        ({"name": "sgd", "momentum": 0.0}, 2),  # parameters and gradients
        ({"name": "sgd", "momentum": 0.9}, 3),
        ({"name": "adam"}, 4),
    ],
)
@pytest.mark.parametrize("bits", [1, 3])
def test_training_memory_by_hand(optimizer, copies, bits):
    parameters = FIRST + 2 * 3 + 2**bits * SECOND + 2 * 5 + LINEAR + 10
    # W_c, its gradient and W_q come on top.
    expected = 4 * (copies * parameters + 3 * SECOND)
    config = tiny_config(optimizer=optimizer)
    assert training_bytes(quantize(tiny_network(), bits), config) == expected


def test_more_memory_than_is_free_is_refused_before_training():
    cost = Cost(1, 1, 1.0, training_bytes=12_340_000_000)
    with pytest.raises(ConfigError) as caught:
        check_memory(cost, 2_000_000_000, "cpu")
    assert caught.value.message == (
        "training needs 12.3 GB for parameters, gradients and optimiser state, "
        "but cpu has 2.0 GB free"
    )
    assert caught.value.hint == (
        "A holds 2**bits numbers per weight: lower weight_bits or the width, or use sgd."
    )


def test_the_last_byte_of_free_memory_may_be_used():
    cost = Cost(1, 1, 1.0, training_bytes=100)
    check_memory(cost, 100, "cpu")
    with pytest.raises(ConfigError, match="but cpu has"):
        check_memory(cost, 99, "cpu")


def test_a_network_that_does_not_take_the_images_is_refused():
    with pytest.raises(InputError, match=r"does not take images of shape \(1, 8, 8\)"):
        estimate(
            TrialConfig.from_mapping({"network.name": "torchvision:resnet18"}),
            DataInfo("classification", in_channels=1, num_classes=10, image_size=8),
        )
