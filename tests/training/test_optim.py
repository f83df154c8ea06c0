from __future__ import annotations

import pytest
import torch

from slb_autotune.config.trial import LrScheduleConfig, OptimizerConfig
from slb_autotune.quant import SLBConv2d, quantize
from slb_autotune.training.optim import clip_gradients, learning_rate, make_optimizer
from tests.builders import tiny_network


def rate(step: int, total: int, peak: float = 1.0, **schedule) -> float:
    return learning_rate(LrScheduleConfig(**schedule), peak, step, total)


@pytest.mark.parametrize("step", [0, 5, 9])
def test_constant(step):
    assert rate(step, 10, 0.3, name="constant") == 0.3


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 2.0), (49, 2.0), (50, 1.0), (74, 1.0), (75, 0.5), (99, 0.5)]
)
def test_milestones(step, expected):
    lr = rate(step, 100, 2.0, name="milestones", milestones=(0.5, 0.75), gamma=0.5)
    assert lr == pytest.approx(expected)


def test_a_share_that_floats_cannot_hold_still_hits_its_step():
    assert 0.55 * 100 > 55
    before, after = (rate(step, 100, name="milestones", milestones=(0.55,)) for step in (54, 55))
    assert (before, after) == pytest.approx((1.0, 0.1))


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 1.0), (6, (1 + 0.5**0.5) / 2), (8, 0.75), (12, 0.5), (16, 0.25)]
)
def test_cosine(step, expected):
    # cos(t pi) is sqrt(1/2) at a quarter, 1/2 at a third, 0 at half, -1/2 at two thirds.
    assert rate(step, 24, name="cosine") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.5 / 25),  # the start is a 25th of the peak
        (15, (0.5 / 25 + 0.5) / 2),  # half way up
        (30, 0.5),  # the peak is at 0.3
        (65, (0.5 + 0.5 / 25 / 1e4) / 2),  # half way down
        (100, 0.5 / 25 / 1e4),  # the last step
    ],
)
def test_one_cycle(step, expected):
    assert rate(step, 101, 0.5, name="one_cycle") == pytest.approx(expected)


@pytest.mark.parametrize("name", ["constant", "cosine", "milestones"])
def test_warmup_rises_in_equal_steps_to_the_peak(name):
    # 20 % of 10 steps: a third, two thirds, and the whole peak when the warmup is over.
    rates = [rate(step, 10, 3.0, name=name, warmup=0.2) for step in range(3)]
    assert rates == pytest.approx([1.0, 2.0, 3.0])


def test_one_cycle_has_its_own_rise():
    with pytest.raises(ValueError, match="one_cycle has a rise of its own"):
        rate(0, 21, name="one_cycle", warmup=0.1)


@pytest.mark.parametrize("name", ["constant", "milestones", "cosine", "one_cycle"])
def test_one_step_is_enough(name):
    assert 0 < rate(0, 1, name=name) <= 1


@pytest.mark.parametrize("decay_logits", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_weight_decay_touches_A_only_when_asked(name, decay_logits):
    network = quantize(tiny_network(), 1)
    config = OptimizerConfig(name=name, lr=0.1, weight_decay=0.5, decay_logits=decay_logits)
    logits = {id(m.logits) for m in network.modules() if isinstance(m, SLBConv2d)}
    decays = {
        id(parameter): group["weight_decay"]
        for group in make_optimizer(network, config).param_groups
        for parameter in group["params"]
    }
    assert len(logits) == 1
    assert decays.keys() == {id(p) for p in network.parameters()}
    for parameter, decay in decays.items():
        assert decay == (0.0 if parameter in logits and not decay_logits else 0.5)


def test_A_stays_where_it_is_without_a_gradient_while_others_decay():
    network = quantize(tiny_network(), 1)
    optimizer = make_optimizer(network, OptimizerConfig(lr=0.1, weight_decay=0.5))
    layer, linear = network[3], network[8]
    before = layer.logits.detach().clone(), linear.weight.detach().clone()
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(layer.logits, before[0])
    torch.testing.assert_close(linear.weight, before[1] * (1 - 0.1 * 0.5))


def test_a_float_network_has_one_group():
    optimizer = make_optimizer(tiny_network(), OptimizerConfig())
    assert len(optimizer.param_groups) == 1


def test_frozen_parameters_are_left_out():
    network = tiny_network()
    network[0].requires_grad_(False)
    optimizer = make_optimizer(network, OptimizerConfig())
    moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert id(network[0].weight) not in moved
    assert id(network[3].weight) in moved


def test_sgd_has_the_momentum_of_the_configuration():
    config = OptimizerConfig(momentum=0.7, nesterov=True, lr=0.2)
    optimizer = make_optimizer(tiny_network(), config)
    assert isinstance(optimizer, torch.optim.SGD)
    assert (optimizer.defaults["momentum"], optimizer.defaults["nesterov"]) == (0.7, True)
    assert optimizer.defaults["lr"] == 0.2


@pytest.mark.parametrize(
    ("clip", "lr", "expected"),
    [
        ("none", 0.1, [3.0, -4.0]),
        ("norm", 0.1, [0.3, -0.4]),  # a norm of 5 is brought to 0.5
        ("value", 0.1, [0.5, -0.5]),
        ("vdsr", 0.1, [3.0, -4.0]),  # 0.5 / 0.1 = 5: nothing to clip
        ("vdsr", 0.2, [2.5, -2.5]),
    ],
)
def test_clipping(clip, lr, expected):
    layer = torch.nn.Linear(2, 1, bias=False)
    layer.weight.grad = torch.tensor([[3.0, -4.0]])
    clip_gradients(layer, OptimizerConfig(clip=clip, clip_limit=0.5), lr)
    torch.testing.assert_close(layer.weight.grad, torch.tensor([expected]))
