"""The quantised network is an ordinary torch network: tools of torch take it and agree with it."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from slb_autotune.quant import SLBConv2d, SLBLinear, set_temperature
from tests.quant.networks import SHAPE, small_network

CASES = [(1, "paper", "sign"), (2, "calibrate", "dorefa"), (4, "off", "pact")]


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
def network(request: pytest.FixtureRequest) -> nn.Module:
    network = small_network(*request.param)
    set_temperature(network, 5.0)
    with torch.no_grad():  # statistics other than those of the start
        network.train()
        for _ in range(3):
            network(torch.randn(6, *SHAPE))
    return network


def images() -> torch.Tensor:
    return torch.randn(5, *SHAPE)


@pytest.mark.parametrize("strict", [False, True])
def test_export_gives_the_same_numbers(network: nn.Module, strict: bool) -> None:
    x = images()
    batch = torch.export.Dim.AUTO
    program = torch.export.export(
        network.eval(), (x,), dynamic_shapes=({0: batch},), strict=strict
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for size in (5, 2):
        assert torch.equal(again(x[:size]), network(x[:size]))


def test_symbolic_trace_gives_the_same_numbers(network: nn.Module) -> None:
    x = images()
    traced = torch.fx.symbolic_trace(network.eval())
    assert torch.equal(traced(x), network(x))
    with torch.no_grad():
        network[3].logits.neg_()  # the traced module shares it
    assert torch.equal(traced(x), network(x))


def test_functional_call_takes_other_parameters(network: nn.Module) -> None:
    x = images()
    network.eval()
    other = copy.deepcopy(network)
    changed = {name: 1.5 * p.detach() + 0.1 for name, p in network.named_parameters()}
    other.load_state_dict(changed, strict=False)
    assert torch.equal(functional_call(network, changed, (x,)), other(x))


def test_gradients_of_functional_call_are_those_of_backward(network: nn.Module) -> None:
    x = images()

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(network, parameters, (x,)).square().sum()

    network(x).square().sum().backward()
    grads = grad(loss)({name: p.detach() for name, p in network.named_parameters()})
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(grads[name], parameter.grad)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(network: nn.Module, use_reentrant: bool) -> None:
    x = images().requires_grad_()
    other = copy.deepcopy(network)
    network(x).square().sum().backward()
    checkpoint(other, x, use_reentrant=use_reentrant).square().sum().backward()
    for one, two in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)


class TestConv2d:
    """SLBConv2d is an nn.Conv2d whose weight is computed, as torch's parametrisations make one."""

    def test_it_is_a_convolution_with_all_attributes_of_one(self) -> None:
        layer = SLBConv2d(4, 8, 3, stride=2, padding=1, groups=2, bits=2)
        plain = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2, bias=False)
        assert isinstance(layer, nn.Conv2d)
        for name, value in vars(plain).items():
            if not name.startswith("_") and name not in ("training",):
                assert getattr(layer, name) == value, name
        assert layer.weight.shape == plain.weight.shape

    def test_the_weight_is_the_one_in_use_and_no_parameter(self) -> None:
        layer = SLBConv2d(2, 3, 3, bits=2)
        assert dict(layer.named_parameters()).keys() == {"logits"}
        assert set(layer.state_dict()) == {"logits"}
        assert torch.equal(layer.weight, layer.continuous_weight())
        assert torch.equal(layer.eval().weight, layer.quantized_weight())

    def test_nobody_can_replace_the_weight_in_silence(self) -> None:
        layer = SLBConv2d(2, 3, 3, bits=2)
        with pytest.raises((AttributeError, KeyError)):
            layer.weight = nn.Parameter(torch.zeros(3, 2, 3, 3))
        with pytest.raises(ValueError, match="non-leaf"):
            torch.optim.SGD([layer.weight], lr=0.1)

    def test_resetting_draws_A(self) -> None:
        layer = SLBConv2d(64, 64, 3, bits=1)
        before = layer.logits.detach().clone()
        layer.reset_parameters()
        assert not torch.equal(before, layer.logits)
        assert float(layer.logits.std()) == pytest.approx(float(before.std()), rel=0.02)

    def test_the_linear_layer_likewise(self) -> None:
        layer = SLBLinear(5, 3, bits=2)
        assert isinstance(layer, nn.Linear)
        assert dict(layer.named_parameters()).keys() == {"logits", "bias"}
        assert layer.weight.shape == (3, 5)
        assert (layer.in_features, layer.out_features) == (5, 3)

    def test_torch_counts_its_operations(self) -> None:
        x = torch.randn(1, 4, 8, 8)
        counts = []
        for layer in (SLBConv2d(4, 6, 3, bits=4), nn.Conv2d(4, 6, 3, bias=False)):
            with FlopCounterMode(display=False) as counter:
                layer(x)
            counts.append(counter.get_total_flops())
        assert counts[0] == counts[1] == 2 * 6 * 6 * 6 * 4 * 9


def test_every_move_of_a_network_goes_through_the_hook_that_layers_override() -> None:
    """`Module._apply` is private: should torch take another way, V, T and A's layout break."""
    calls: list[str] = []

    class Watched(SLBConv2d):
        def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]
            calls.append("applied")
            return super()._apply(fn, recurse)

    network = nn.Sequential(Watched(2, 3, 3, bits=2))
    moves = [
        lambda: network.double(),
        lambda: network.to(torch.float32),
        lambda: network.bfloat16(),
        lambda: network.to(dtype=torch.float32, memory_format=torch.channels_last),
        lambda: network.cpu(),
        lambda: network.to_empty(device="cpu"),
    ]
    for count, move in enumerate(moves, start=1):
        move()
        assert len(calls) == count
        assert network[0].logits.is_contiguous()
        assert network[0].values.dtype == network[0].logits.dtype
