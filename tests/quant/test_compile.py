"""torch.compile: a training step is one graph, gives eager's numbers, and holds for every T."""

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from slb_autotune.quant import expectation, set_step, set_temperature
from tests.quant.networks import SHAPE, small_network

TEMPERATURES = (1.0, 2.0, 37.5)


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def one_step(network: nn.Module, loss: torch.nn.Module, i: int, T: float) -> list[torch.Tensor]:
    """The loss, all gradients and all buffers after a step on batch `i`."""
    generator = torch.Generator().manual_seed(i)
    x = torch.randn(6, *SHAPE, generator=generator)
    y = torch.randint(4, (6,), generator=generator)
    set_temperature(network, T)
    set_step(network, i)
    network.zero_grad()
    value = loss(network, x, y)
    value.backward()
    grads = [parameter.grad.clone() for parameter in network.parameters()]
    return [value.detach(), *grads, *(buffer.clone() for buffer in network.buffers())]


def loss_of(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(network(x), y)


def check_steps(network: nn.Module, backend: str, **tolerance: float) -> None:
    """Three steps with three T: one graph, no other afterwards, and the numbers of eager."""
    eager = network.train()
    compiled = copy.deepcopy(eager)
    compiled_loss = torch.compile(loss_of, fullgraph=True, backend=backend)
    for i, T in enumerate(TEMPERATURES):
        with torch.compiler.set_stance("default" if i == 0 else "fail_on_recompile"):
            results = one_step(compiled, compiled_loss, i, T)
        for one, other in zip(results, one_step(eager, loss_of, i, T), strict=True):
            torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("activation", ["sign", "dorefa", "pact"])
@pytest.mark.parametrize("mode", ["paper", "calibrate", "off"])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_training_step_is_one_graph_with_the_numbers_of_eager(
    bits: int, mode: str, activation: str
) -> None:
    check_steps(small_network(bits, mode, activation), "aot_eager")


@pytest.mark.parametrize("bits", [2, 4])
def test_so_is_that_of_a_network_large_enough_to_compute_P_again(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expectation, "_SMALL", 0)
    check_steps(small_network(bits, "paper", "dorefa"), "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "mode", "activation"),
    [(1, "paper", "sign"), (2, "calibrate", "dorefa"), (4, "paper", "pact"), (4, "off", "sign")],
)
def test_the_same_with_generated_kernels(bits: int, mode: str, activation: str) -> None:
    # Its kernels add up in another order.
    check_steps(small_network(bits, mode, activation), "inductor", rtol=1e-4, atol=1e-4)


def test_the_discrete_statistics_follow_under_compile() -> None:
    network = small_network(2, "paper").train()
    before = network[5].running_mean_q.clone()
    torch.compile(network, fullgraph=True, backend="aot_eager")(torch.randn(6, *SHAPE))
    assert not torch.equal(before, network[5].running_mean_q)


def test_statistics_of_every_third_step_take_two_graphs() -> None:
    network = small_network(2, "paper", every=3).train()
    compiled = torch.compile(loss_of, fullgraph=True, backend="aot_eager")
    seen = []
    for i in range(7):
        before = network[5].running_mean_q.clone()
        with torch.compiler.set_stance("default" if i < 2 else "fail_on_recompile"):
            one_step(network, compiled, i, 1.0 + i)
        seen.append(not torch.equal(before, network[5].running_mean_q))
    assert seen == [True, False, False, True, False, False, True]


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_inference_is_one_graph_that_sees_every_A(bits: int) -> None:
    network = small_network(bits).eval()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    x = torch.randn(6, *SHAPE)
    torch.testing.assert_close(compiled(x), network(x))
    with torch.no_grad():
        network[3].logits.neg_()
    with torch.compiler.set_stance("fail_on_recompile"):
        torch.testing.assert_close(compiled(x), network(x))


@pytest.mark.parametrize("bits", [1, 2])
def test_float64_and_half_precision(bits: int) -> None:
    x = torch.randn(6, *SHAPE)
    double = small_network(bits).double().train()
    compiled = torch.compile(copy.deepcopy(double), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x.double()), double(x.double()), atol=1e-12, rtol=1e-12)
    network = small_network(bits).train()
    compiled = torch.compile(copy.deepcopy(network), fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(x), network(x))
