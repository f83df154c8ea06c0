"""quantize(): any network, its layers and its BNs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from slb_autotune.config.trial import NormConfig
from slb_autotune.errors import ConfigError, ConversionError
from slb_autotune.nets.resnet18 import resnet18
from slb_autotune.nets.resnet20 import resnet20
from slb_autotune.nets.vdsr import vdsr
from slb_autotune.nets.vgg_small import vgg_small
from slb_autotune.quant import (
    DoReFa,
    LowBitLayer,
    SLBConv2d,
    SLBLinear,
    StateBatchNorm2d,
    quantisable_layers,
    quantize,
)
from slb_autotune.quant.convert import NoRelu

PAPER = NormConfig(mode="paper")


class Functional(nn.Module):
    """Conv, functional activation, BN; and modules that are defined in another order than used."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.Conv2d(4, 4, 3, padding=1)
        self.early = nn.Conv2d(3, 4, 3, padding=1)
        self.middle = nn.Conv2d(4, 4, 1)
        self.bn_late = nn.BatchNorm2d(4)
        self.bn_middle = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.early(x))
        x = self.bn_middle(F.leaky_relu(self.middle(x), 0.3))
        return self.bn_late(torch.tanh(self.late(x)))


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.second = nn.Conv2d(4, 4, 3)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bn(F.max_pool2d(self.second(self.first(x)), 2))


def test_the_first_convolution_is_the_first_that_runs() -> None:
    assert quantisable_layers(Functional()) == ["middle", "late"]


def test_resnet20_every_convolution_but_the_first() -> None:
    network = resnet20(width=4)
    names = quantisable_layers(network)
    convolutions = [n for n, m in network.named_modules() if isinstance(m, nn.Conv2d)]
    assert names == convolutions[1:]
    quantised = quantize(network, 2)
    kinds = {name: type(module) for name, module in quantised.named_modules()}
    assert all(kinds[name] is SLBConv2d for name in names)
    assert kinds["conv1"] is nn.Conv2d
    assert kinds["fc"] is nn.Linear
    assert nn.BatchNorm2d not in kinds.values()


def test_the_network_given_is_left_alone() -> None:
    network = resnet20(width=4)
    before = copy.deepcopy(network.state_dict())
    quantize(network, 1)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training
    assert not network._forward_hooks
    assert not any(module._forward_hooks for module in network.modules())


def test_bits_by_name_and_pattern() -> None:
    bits = {"layer1.*": 4, "layer1.0.*": 2, "layer1.0.conv2": 1, "layer3.?.conv1": 32}
    quantised = quantize(resnet20(width=4), bits, {"layer1.0.conv1": 2})

    def of(name: str) -> int:
        return getattr(quantised.get_submodule(name), "bits", 32)

    assert [of("layer1.0.conv1"), of("layer1.0.conv2"), of("layer1.1.conv1")] == [2, 1, 4]
    assert [of("layer2.0.conv1"), of("layer3.0.conv1")] == [32, 32]
    assert isinstance(quantised.get_submodule("layer1.0.conv1").activation, DoReFa)
    assert quantised.get_submodule("layer1.1.conv1").activation is None


@pytest.mark.parametrize("method_bits", [("float", 32), ("slb", 32)])
def test_32_bits_is_the_float_network(method_bits: tuple[str, int]) -> None:
    network = resnet20(width=4).eval()
    x = torch.randn(2, 3, 16, 16)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    method, bits = method_bits
    same = quantize(network, bits, method=method).eval()
    assert torch.allclose(same(x), network(x), atol=1e-4)
    assert {type(m) for m in same.modules()} & {SLBConv2d} == set()


@pytest.mark.parametrize(
    ("network", "size"),
    [
        (resnet20(width=4), 16),
        (resnet20(width=4, order="conv_prelu_bn"), 16),
        (vgg_small(width=4, image_size=16), 16),
        (resnet18(width=4, num_classes=5), 32),
        (resnet18(width=4, num_classes=5, order="conv_bn_relu"), 32),
    ],
)
@pytest.mark.parametrize("mode", ["paper", "calibrate", "off"])
def test_every_network_trains_in_every_mode(network: nn.Module, size: int, mode: str) -> None:
    example = torch.randn(4, 3, size, size)
    quantised = quantize(network, 1, 2, example_input=example, norm=NormConfig(mode=mode))
    quantised.train()(example).square().sum().backward()
    for name, parameter in quantised.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    linked = [m for m in quantised.modules() if isinstance(m, SLBConv2d) and m.link is not None]
    convolutions = [m for m in quantised.modules() if isinstance(m, SLBConv2d)]
    assert len(linked) == (len(convolutions) if mode == "paper" else 0)
    assert quantised.eval()(example).isfinite().all()


def test_functional_steps_between_are_replayed_on_y_q() -> None:
    network = quantize(Functional(), 1, norm=PAPER).train()
    x = torch.randn(4, 3, 8, 8)
    network(x)
    hidden = F.relu(network.early(x))
    y_q = F.conv2d(hidden, network.middle.quantized_weight(), network.middle.bias)
    mean = F.leaky_relu(y_q, 0.3).mean((0, 2, 3))
    assert torch.allclose(network.bn_middle.running_mean_q, 0.1 * mean, atol=1e-5)


def test_a_copy_observes_into_its_own_bn() -> None:
    network = quantize(resnet20(width=4), 1, norm=PAPER).train()
    other = copy.deepcopy(network)
    other(torch.randn(4, 3, 8, 8))
    assert torch.equal(network.layer1[0].bn1.running_mean_q, torch.zeros(4))
    assert not torch.equal(other.layer1[0].bn1.running_mean_q, torch.zeros(4))


def test_pooling_between_is_for_calibrate() -> None:
    with pytest.raises(ConversionError) as caught:
        quantize(Pooled(), 1, norm=PAPER)
    assert "'bn' is not fed by one convolution through element-wise steps" in str(caught.value)
    assert "use norm.mode: calibrate" in str(caught.value)
    quantised = quantize(Pooled(), 1)
    assert quantised.second.norm is None
    assert isinstance(quantised.bn, StateBatchNorm2d)


class TestVdsr:
    def test_quantised_form(self) -> None:
        network = quantize(vdsr(width=4, depth=5), 1)
        assert isinstance(network.head, nn.Conv2d)
        assert isinstance(network.tail, nn.Conv2d)
        body = [m for m in network.body if isinstance(m, SLBConv2d)]
        assert len(body) == 3
        assert all(isinstance(layer.norm, StateBatchNorm2d) for layer in body)

    def test_the_switch_quantises_the_last_with_one_scale(self) -> None:
        network = quantize(vdsr(width=4, depth=5), 1, keep_float=())
        assert isinstance(network.tail, SLBConv2d)
        assert network.tail.norm is None
        assert network.tail.output_scale.numel() == 1
        x = torch.randn(2, 1, 12, 12)
        network(x).sum().backward()
        assert network.tail.output_scale.grad is not None

    def test_paper_mode_observes_in_the_added_bn(self) -> None:
        network = quantize(vdsr(width=4, depth=4), 1, norm=PAPER).train()
        network(torch.randn(2, 1, 12, 12))
        assert not torch.equal(network.body.conv1.norm.running_mean_q, torch.zeros(4))

    def test_a_one_bit_network_does_not_blow_up(self) -> None:
        network = quantize(vdsr(width=16, depth=20), 1).train()
        assert network(torch.rand(4, 1, 20, 20)).abs().max() < 100


def test_a_module_used_under_two_names_is_replaced_under_both() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 3, 1)
            self.a = nn.Conv2d(3, 3, 1)
            self.b = self.a

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(self.first(x)))

    network = quantize(Shared(), 1)
    assert network.a is network.b
    assert isinstance(network.a, SLBConv2d)


def test_a_layer_that_feeds_two_bns_is_for_calibrate() -> None:
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
            self.a, self.b = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.second(self.first(x))
            return self.a(y) + self.b(y)

    with pytest.raises(ConversionError, match="'second' feeds more than one BN"):
        quantize(Forked(), 1, norm=PAPER)
    assert quantize(Forked(), 1).a.mode == "calibrate"


def test_linear_layers_on_request() -> None:
    network = resnet20(width=4)
    assert "fc" not in quantisable_layers(network)
    assert quantisable_layers(network, include_linear=True)[-1] == "fc"
    quantised = quantize(network, {"fc": 2}, include_linear=True)
    assert isinstance(quantised.fc, SLBLinear)
    assert quantised.fc.output_scale is not None


def test_weights_of_a_float_network_start_the_search() -> None:
    network = resnet20(width=4)
    quantised = quantize(network, 1, keep_weights=True, spread=0.2)
    weight = network.layer2[1].conv1.weight
    layer = quantised.layer2[1].conv1
    assert torch.equal(layer.quantized_weight(), weight.sign())
    assert float(layer.logits.std()) == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight_bits": {"layer1.0.conv3": 1}}, "did you mean 'layer1.0.conv"),
        ({"weight_bits": {"conv1": 1}}, "no quantisable layer is named 'conv1'"),
        ({"weight_bits": 1, "keep_float": ["tail"]}, "keep_float: no layer is named 'tail'"),
        ({"weight_bits": 1, "method": "slbb"}, "did you mean 'slb'?"),
        ({"weight_bits": 2.0}, "weight_bits must be a number of bits, or a map from layer names"),
        ({"weight_bits": "2"}, "weight_bits must be a number of bits"),
        ({"weight_bits": True}, "weight_bits must be a number of bits"),
        ({"weight_bits": {"layer1.*": "2"}}, "weight_bits must be a number of bits"),
        ({"weight_bits": 1, "activation_bits": None}, "activation_bits must be a number of bits"),
        ({"weight_bits": {3: 2}}, "the name of a layer must be a string; got 3 Hint: write '3'."),
    ],
)
def test_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        quantize(resnet20(width=4), **arguments)
    assert message in str(caught.value)


def test_odd_networks() -> None:
    with pytest.raises(ConversionError, match="has no Conv2d"):
        quantize(nn.Linear(3, 3), 1)
    odd = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 13 * 13, 2))
    with pytest.raises(ConversionError, match="pass example_input"):
        quantize(odd, 1)
    assert quantisable_layers(odd, torch.zeros(1, 3, 15, 15)) == []
    with pytest.raises(ConversionError, match="there is no layer to quantise: the first"):
        quantize(odd, 1, example_input=torch.zeros(1, 3, 15, 15))
    assert quantize(odd, 32, example_input=torch.zeros(1, 3, 15, 15)) is not odd
    reflect = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding_mode="reflect"))
    with pytest.raises(ConversionError, match="only 'zeros' can be quantised"):
        quantize(reflect, 1)


def test_a_network_is_quantised_once() -> None:
    once = quantize(resnet20(width=4), {"layer1.*": 2})
    with pytest.raises(
        ConversionError, match=r"quantised already: layer1\.0\.conv1 is a SLBConv2d"
    ):
        quantize(once, 4)


class Residual(nn.Module):
    """conv, BN, ReLU as modules, a pool between, and a ReLU after a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_bn = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.one, self.one_bn = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.two, self.two_bn = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relus = nn.ModuleList(nn.ReLU(inplace=True) for _ in range(3))
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relus[0](self.stem_bn(self.stem(x))))
        y = self.relus[1](self.one_bn(self.one(x)) + x)
        return self.relus[2](self.two_bn(self.two(y)))


@pytest.mark.parametrize("method", ["bnn", "xnor"])
def test_a_relu_before_a_sign_is_taken_out(method: str) -> None:
    network = quantize(Residual(), 1, 1, method, torch.zeros(1, 1, 8, 8))
    assert [type(relu) for relu in network.relus] == [NoRelu, NoRelu, nn.ReLU]
    seen: list[torch.Tensor] = []
    for layer in (network.one, network.two):
        layer.activation.register_forward_hook(lambda _, __, out: seen.append(out))
    network(torch.randn(8, 1, 8, 8))
    assert all(set(out.unique().tolist()) == {-1.0, 1.0} for out in seen)


@pytest.mark.parametrize(
    ("method", "bits", "activation"),
    [("bnn", 32, "method"), ("dorefa", 1, "method"), ("bnn", 1, "dorefa"), ("slb", 2, "method")],
)
def test_a_relu_stays_where_no_sign_is_taken(method: str, bits: int, activation: str) -> None:
    network = quantize(Residual(), 1, bits, method, torch.zeros(1, 1, 8, 8), activation=activation)
    assert all(type(relu) is nn.ReLU for relu in network.relus)


def test_a_relu_that_is_no_module_cannot_be_taken_out() -> None:
    with pytest.raises(ConversionError, match="'middle' would take the sign"):
        quantize(Functional(), 1, 1, "bnn", torch.zeros(1, 3, 8, 8))


def test_a_method_without_activation_quantiser_refuses_low_bit_activations() -> None:
    with pytest.raises(ConfigError, match="leaves activations float"):
        quantize(resnet20(width=4), 1, 1, "bwn", torch.zeros(1, 3, 32, 32))
    named = quantize(
        resnet20(width=4), 1, 2, "bwn", torch.zeros(1, 3, 32, 32), activation="dorefa"
    )
    assert isinstance(named.layer1[0].conv1.activation, DoReFa)


def test_rivals_have_one_set_of_statistics_and_start_from_the_weights() -> None:
    torch.manual_seed(0)
    plain = resnet20(width=4)
    network = quantize(plain, 1, 32, "dorefa", torch.zeros(1, 3, 32, 32))
    norms = [m for m in network.modules() if isinstance(m, StateBatchNorm2d)]
    assert {norm.mode for norm in norms} == {"off"}
    assert torch.equal(network.layer2[1].conv2.weight, plain.layer2[1].conv2.weight)


def test_rivals_of_a_network_without_bn_get_one() -> None:
    network = quantize(vdsr(width=4, depth=4), 1, 32, "dorefa", torch.zeros(1, 1, 16, 16))
    norms = [m.norm for m in network.body if isinstance(m, LowBitLayer)]
    assert len(norms) == 2
    assert all(norm.mode == "off" for norm in norms)


def test_bireal_net_is_the_one_of_its_paper() -> None:
    """Each unit is x + BN(conv(sign(x))); shortcuts average and widen by a float convolution."""
    torch.manual_seed(0)
    network = quantize(
        resnet18(width=4, num_classes=10, order="conv_bn_relu"),
        1,
        1,
        "bireal",
        torch.zeros(1, 3, 64, 64),
        keep_float=["*.downsample.1"],
    ).eval()
    for unit in (network.layer1[2], network.layer2[0]):
        assert isinstance(unit.act, NoRelu)
        channels = unit.conv.weight_shape[1]
        x = torch.randn(2, channels, 8, 8)
        shortcut = x
        if isinstance(unit.downsample, nn.Sequential):
            pool, conv, norm = unit.downsample
            assert type(conv) is nn.Conv2d
            shortcut = norm(conv(pool(x)))
        signs = torch.where(x >= 0, 1.0, -1.0)
        alpha = unit.conv.weight.abs().mean(dim=(1, 2, 3), keepdim=True)
        weight = alpha * torch.where(unit.conv.weight >= 0, 1.0, -1.0)
        y = unit.bn(F.conv2d(signs, weight, stride=unit.conv.stride, padding=1)) + shortcut
        torch.testing.assert_close(unit(x), y)
