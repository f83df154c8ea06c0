"""The network of a trial: quantised, in its memory format, from a checkpoint where asked."""

from pathlib import Path

import pytest
import torch
from torch import nn

from slb_autotune import data
from slb_autotune.errors import CheckpointError
from slb_autotune.quant import SLBConv2d, StateBatchNorm2d
from slb_autotune.training.loop import train
from slb_autotune.training.network import is_soft, load_into, make_network
from tests.training.configs import small

CPU = torch.device("cpu")
DIGITS = data.info(small().data)


def test_no_batch_norm_of_a_float_network_stays_plain() -> None:
    network = make_network(small(method="float"), DIGITS, CPU)
    kinds = [type(module) for module in network.modules()]
    assert nn.BatchNorm2d not in kinds
    assert kinds.count(StateBatchNorm2d) == 7


@pytest.mark.parametrize(("method", "soft"), [("slb", True), ("dorefa", False), ("float", False)])
def test_slb_alone_trains_with_another_weight_than_inference_uses(method: str, soft: bool) -> None:
    assert is_soft(make_network(small(method=method), DIGITS, CPU)) is soft


@pytest.mark.parametrize("channels_last", [True, False])
def test_weights_are_in_the_memory_format_of_the_trial(channels_last: bool) -> None:
    network = make_network(small(channels_last=channels_last, method="dorefa"), DIGITS, CPU)
    weights = [p for p in network.parameters() if p.dim() == 4 and p.shape[1] > 1]
    assert len(weights) == 6
    for weight in weights:
        assert weight.is_contiguous(memory_format=torch.channels_last) is channels_last


def test_a_checkpoint_that_does_not_fit_is_explained() -> None:
    state = make_network(small(), DIGITS, CPU).state_dict()
    wider = make_network(small(width=8), DIGITS, CPU)
    with pytest.raises(CheckpointError, match=r"does not fit the network: size mismatch for"):
        load_into(wider, state)
    state.pop("fc.bias")
    with pytest.raises(CheckpointError, match=r'Missing key.*"fc.bias".*same network, width'):
        load_into(make_network(small(), DIGITS, CPU), state)


def test_slb_starts_from_the_weights_of_a_float_run(tmp_path: Path) -> None:
    float_run = train(small(method="float"), folder=tmp_path / "float")
    config = small(**{"init.checkpoint": str(tmp_path / "float" / "checkpoint.pt")})
    network = make_network(config, DIGITS, CPU)
    layer = network.get_submodule("layer1.0.conv1")
    assert isinstance(layer, SLBConv2d)
    weight = float_run.network.get_submodule("layer1.0.conv1").weight
    assert torch.equal(layer.quantized_weight(), weight.sign())
    stem = network.get_submodule("conv1").weight
    assert torch.equal(stem, float_run.network.get_submodule("conv1").weight)
