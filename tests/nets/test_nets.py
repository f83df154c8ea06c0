from __future__ import annotations

import sys
from importlib import import_module

import pytest
import torch
from torch import nn

from slb_autotune.config.registry import NETWORKS
from slb_autotune.config.trial import NetworkConfig
from slb_autotune.errors import ConfigError
from slb_autotune.nets import build_network
from slb_autotune.quant import SLBConv2d, quantisable_layers, quantize

CLASSIFIERS = [n for n in NETWORKS if NETWORKS[n].details["task"] == "classification"]

MINE = """
from torch import nn

seen = {}

def net(in_channels, num_classes, depth=1):
    seen.update(in_channels=in_channels, num_classes=num_classes, depth=depth)
    return nn.Sequential(nn.Conv2d(in_channels, 4, 3), nn.Flatten(), nn.LazyLinear(num_classes))

def anything(**options):
    seen.update(options)
    return nn.Identity()

def text():
    return "a text"

def picky(width):
    raise ValueError(f"width {width} is odd")
"""


def build(name: str, in_channels=3, num_classes=10, image_size=32, width=None, **options):
    config = NetworkConfig(name=name, width=width, options=options)
    return build_network(config, in_channels, num_classes, image_size)


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("my_networks")
    del sys.modules["my_networks"]


def test_resnet20_has_the_published_parameters():
    stage1 = 6 * 9 * 16 * 16
    stage2 = 9 * 16 * 32 + 5 * 9 * 32 * 32
    stage3 = 9 * 32 * 64 + 5 * 9 * 64 * 64
    norms = 2 * (7 * 16 + 6 * 32 + 6 * 64)
    linear = 64 * 10 + 10
    expected = 9 * 3 * 16 + stage1 + stage2 + stage3 + norms + linear
    assert count(build("resnet20")) == expected == 269_722


@pytest.mark.parametrize(("blocks", "parameters"), [(1, 75_290), (5, 464_154), (9, 853_018)])
def test_more_blocks_are_the_deeper_networks_of_the_family(blocks, parameters):
    """ResNet32 and ResNet56 have 0.46 and 0.85 million (He et al., 2016, table 6)."""
    a_block = 2 * (9 * (16**2 + 32**2 + 64**2) + 2 * (16 + 32 + 64))
    expected = count(build("resnet20")) + (blocks - 3) * a_block
    assert count(build("resnet20", blocks=blocks)) == expected == parameters


def test_the_readmes_order_adds_one_prelu_slope_per_channel():
    extra = count(build("resnet20", order="conv_prelu_bn")) - count(build("resnet20"))
    assert extra == 7 * 16 + 6 * 32 + 6 * 64


def test_vgg_small_has_the_published_convolutions():
    network = build("vgg_small")
    convolutions = sum(m.weight.numel() for m in network.modules() if isinstance(m, nn.Conv2d))
    pairs = 3 * 128 + 128 * 128 + 128 * 256 + 256 * 256 + 256 * 512 + 512 * 512
    assert convolutions == 9 * pairs == 4_574_592
    norms, linear = 2 * 2 * (128 + 256 + 512), 512 * 4 * 4 * 10 + 10
    assert count(network) == 9 * pairs + norms + linear


def test_vdsr_has_the_published_parameters():
    network = build("vdsr", in_channels=1, num_classes=None)
    assert count(network) == 9 * 64 + 18 * 9 * 64 * 64 + 9 * 64 == 664_704


def test_resnet18_by_hand():
    first = 7 * 7 * 3 * 64 + 2 * 64
    # A unit: a 3x3 convolution, a PReLU slope and a BN pair per channel.
    units = 4 * (9 * 64 * 64 + 3 * 64)
    for channels in (128, 256, 512):
        shortcut = channels // 2 * channels + 2 * channels
        units += 9 * channels // 2 * channels + 3 * channels + shortcut
        units += 3 * (9 * channels * channels + 3 * channels)
    linear = 512 * 1000 + 1000
    network = build("resnet18", num_classes=1000, image_size=224)
    assert count(network) == first + units + linear == 11_693_352


def test_resnet18_without_prelu_has_the_weights_of_torchvisions():
    ours = build("resnet18", num_classes=1000, order="conv_bn_relu")
    assert count(ours) == count(build("torchvision:resnet18", num_classes=1000)) == 11_689_512


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize(
    ("width", "in_channels", "num_classes", "image_size"),
    [(2, 1, 10, 8), (3, 3, 7, 32), (4, 2, 2, 33)],
)
def test_classifiers_fit_the_data(name, width, in_channels, num_classes, image_size):
    network = build(name, in_channels, num_classes, image_size, width)
    y = network(torch.randn(2, in_channels, image_size, image_size))
    assert y.shape == (2, num_classes)
    first = next(m for m in network.modules() if isinstance(m, nn.Conv2d))
    assert first.out_channels == width


@pytest.mark.parametrize(("width", "depth", "size"), [(2, 3, 9), (4, 6, 12)])
def test_vdsr_keeps_the_size_of_an_image(width, depth, size):
    network = build("vdsr", 1, None, 41, width, depth=depth)
    assert sum(isinstance(m, nn.Conv2d) for m in network.modules()) == depth
    assert network(torch.randn(2, 1, size, size + 3)).shape == (2, 1, size, size + 3)


def test_vdsr_adds_its_residual_to_the_input():
    network = build("vdsr", 1, None, 41, width=2, depth=3)
    nn.init.zeros_(network.tail.weight)
    x = torch.randn(1, 1, 8, 8)
    assert torch.equal(network(x), x)


@pytest.mark.parametrize("name", ["resnet20", "resnet18"])
def test_the_order_says_what_stands_behind_a_convolution(name):
    calls = {}
    for order in ("conv_bn_relu", "conv_prelu_bn"):
        network = build(name, width=2, order=order).eval()
        kinds = calls[order] = []
        for module in network.layer2[1].modules():
            if isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.ReLU | nn.PReLU):
                module.register_forward_hook(lambda m, *_, kinds=kinds: kinds.append(type(m)))
        network(torch.randn(1, 3, 32, 32))
    assert calls["conv_bn_relu"][:3] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
    assert calls["conv_prelu_bn"][:3] == [nn.Conv2d, nn.PReLU, nn.BatchNorm2d]


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_quantises_all_but_its_ends(name):
    network = build(name, 1, None if name == "vdsr" else 10, 16, 2)
    convolutions = [n for n, m in network.named_modules() if isinstance(m, nn.Conv2d)]
    ends = 2 if name == "vdsr" else 1
    layers = quantisable_layers(network, torch.zeros(1, 1, 16, 16))
    assert len(layers) == len(convolutions) - ends
    assert convolutions[0] not in layers


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_torchvisions_networks_are_built_and_quantised(name):
    network = build(f"torchvision:{name}", num_classes=7)
    quantised = quantize(network, 1, 2, example_input=torch.zeros(1, 3, 32, 32))
    convolutions = sum(isinstance(m, nn.Conv2d) for m in network.modules())
    assert sum(isinstance(m, SLBConv2d) for m in quantised.modules()) == convolutions - 1
    y = quantised(torch.randn(2, 3, 32, 32))
    assert y.shape == (2, 7)
    y.sum().backward()
    assert all(m.logits.grad is not None for m in quantised.modules() if isinstance(m, SLBConv2d))


def test_a_function_of_ones_own_gets_what_it_accepts(mine):
    network = build("my_networks:net", in_channels=2, num_classes=5, image_size=8, depth=3)
    assert mine.seen == {"in_channels": 2, "num_classes": 5, "depth": 3}
    assert network(torch.zeros(1, 2, 8, 8)).shape == (1, 5)


def test_a_function_of_any_keywords_gets_classes_and_options(mine):
    build("my_networks:anything", width=3, colour="red")
    assert mine.seen == {"num_classes": 10, "width": 3, "colour": "red"}


@pytest.mark.parametrize(
    ("name", "options", "message", "hint"),
    [
        (
            "my_networks:net",
            {"dept": 3},
            "network 'my_networks:net' has no option 'dept'",
            "did you mean 'depth'?",
        ),
        (
            "my_networks:net",
            {"width": 3},
            "network 'my_networks:net' has no option 'width'",
            "give --set network.width=null.",
        ),
        (
            "my_networks:nett",
            {},
            "network 'my_networks:nett': no function 'nett'",
            "did you mean 'net'?",
        ),
        ("my_networks:text", {}, "network 'my_networks:text' gave a str, not a Module", ""),
        (
            "my_networks:picky",
            {"width": 3},
            "network 'my_networks:picky' cannot be built: width 3 is odd",
            "",
        ),
        (
            "no_such_module:net",
            {},
            "network 'no_such_module:net': module 'no_such_module' cannot be imported: "
            "No module named 'no_such_module'",
            "start where the module is, or install it.",
        ),
        (
            "torchvision:resnet81",
            {},
            "network 'torchvision:resnet81': no function 'resnet81'",
            "did you mean 'resnet18'?",
        ),
        (
            "resnet20",
            {"ordr": "conv_prelu_bn"},
            "network 'resnet20' has no option 'ordr'",
            "did you mean 'order'?",
        ),
        (
            "resnet20",
            {"order": "bn_conv"},
            "network 'resnet20' cannot be built: order must be one of "
            "('conv_bn_relu', 'conv_prelu_bn'); got 'bn_conv'",
            "",
        ),
        (
            "resnet20",
            {"blocks": 0},
            "network 'resnet20' cannot be built: blocks must be at least 1; got 0",
            "",
        ),
        (
            "vdsr",
            {"depth": 2},
            "network 'vdsr' cannot be built: depth of vdsr must be at least 3; got 2",
            "",
        ),
    ],
)
def test_what_cannot_be_built_is_explained(mine, name, options, message, hint):
    with pytest.raises(ConfigError) as caught:
        build(name, **options)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_vgg_small_refuses_images_that_it_would_halve_to_nothing():
    with pytest.raises(ConfigError, match="8 pixels at least; got 7"):
        build("vgg_small", image_size=7)


@pytest.mark.parametrize("name", [":net", ".my_networks:net"])
def test_a_name_without_a_module_is_refused(mine, name):
    with pytest.raises(ConfigError, match=f"network {name!r}: module .* cannot be imported: "):
        build(name)


@pytest.mark.parametrize("option", ["in_channels", "num_classes"])
def test_options_do_not_contradict_the_data(option):
    with pytest.raises(ConfigError, match=f"{option} comes from the data set Hint: leave it out"):
        build_network(NetworkConfig(options={option: 5}), 3, 10, 32)
