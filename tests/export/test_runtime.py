"""The network at inference: no more numbers than a float network, and the same results."""

from pathlib import Path

import torch
from torch import Tensor, nn

from slb_autotune.export.packed import load_packed, save_packed
from slb_autotune.export.runtime import (
    FoldedNorm2d,
    PackedConv2d,
    inference_network,
    inference_tensors,
)
from slb_autotune.quant import StateBatchNorm2d
from slb_autotune.training.network import formatted, make_network
from tests.builders import tiny_config
from tests.export.reference import CPU, DIGITS


def test_the_loaded_network_holds_no_logits(tmp_path: Path) -> None:
    config = tiny_config(weight_bits=8)
    network = make_network(config, DIGITS, CPU)
    loaded = load_packed(save_packed(network, config, tmp_path / "n", DIGITS))

    def numbers(of: nn.Module) -> int:
        return sum(tensor.numel() for tensor in (*of.parameters(), *of.buffers()))

    plain = make_network(tiny_config(method="float"), DIGITS, CPU)
    assert numbers(loaded) <= numbers(plain)
    assert numbers(network) > 100 * numbers(loaded)


def test_a_folded_norm_computes_what_the_state_norm_does() -> None:
    norm = StateBatchNorm2d(5).eval()
    norm.running_mean_q.normal_()
    norm.running_var_q.uniform_(0.1, 3)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    y = torch.randn(3, 5, 4, 4)
    assert torch.equal(FoldedNorm2d(*norm.folded())(y), norm(y))


class Shared(nn.Module):
    """A convolution and its BN under two names each, one of them in another module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.alias = self.body[0]
        self.norms = nn.ModuleList([self.body[1]])
        self.fc = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(self.first(x)).mean(dim=(2, 3)))


def test_a_module_is_replaced_under_every_name_that_it_has() -> None:
    config = tiny_config(**{"network.name": f"{__name__}:Shared", "width": None})
    network = make_network(config, DIGITS, CPU).eval()
    loaded = inference_network(config, DIGITS, inference_tensors(network))
    assert loaded.alias is loaded.body[0]
    assert isinstance(loaded.alias, PackedConv2d)
    assert loaded.norms[0] is loaded.body[1]
    assert isinstance(loaded.norms[0], FoldedNorm2d)
    assert [type(module) for module in loaded.body] == [PackedConv2d, FoldedNorm2d, nn.ReLU]
    images = formatted(torch.randn(2, 1, 8, 8), config)
    assert torch.equal(loaded(images), network(images))
