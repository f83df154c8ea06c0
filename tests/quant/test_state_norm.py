"""State batch normalisation: the three modes, the folded pair, calibration."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from slb_autotune.config.trial import NormConfig
from slb_autotune.errors import ConfigError
from slb_autotune.quant import (
    SLBConv2d,
    StateBatchNorm2d,
    calibrate,
    network_state,
    quantize,
    set_step,
)
from slb_autotune.quant.state_norm import eps_share, estimate_statistics, state_norms


def images(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8)


def network(mode: str, every: int = 1, **layers: nn.Module) -> nn.Module:
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
    )
    norm = NormConfig(mode=mode, every=every)
    return quantize(plain, 1, example_input=images(1), norm=norm)


def test_the_buffers_of_the_contract() -> None:
    norm = StateBatchNorm2d(4)
    assert {name for name, _ in norm.named_buffers()} == {
        "running_mean_c",
        "running_var_c",
        "running_mean_q",
        "running_var_q",
    }
    assert norm.mode == "calibrate"


def test_training_is_batch_normalisation_of_y_c() -> None:
    norm, plain = StateBatchNorm2d(5), nn.BatchNorm2d(5)
    y = torch.randn(4, 5, 3, 3)
    assert torch.equal(norm(y), plain(y))
    assert torch.equal(norm.running_mean_c, plain.running_mean)
    assert torch.equal(norm.running_var_c, plain.running_var)
    assert torch.equal(norm.running_mean_q, torch.zeros(5))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_y_q_feeds_the_second_set_alone_and_takes_no_gradient(memory_format) -> None:
    norm, plain = StateBatchNorm2d(5, mode="paper"), nn.BatchNorm2d(5)
    y_c = torch.randn(4, 5, 3, 3)
    y_q = (2 + 3 * torch.randn(4, 5, 3, 3)).contiguous(memory_format=memory_format)
    y_q.requires_grad_()
    norm(y_c, y_q).sum().backward()
    plain(y_q)
    assert torch.allclose(norm.running_mean_q, plain.running_mean, atol=1e-6)
    assert torch.allclose(norm.running_var_q, plain.running_var, atol=1e-5)
    assert y_q.grad is None


def test_eval_uses_the_discrete_set_through_the_folded_pair() -> None:
    norm = StateBatchNorm2d(5).eval()
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean_q):
        tensor.normal_()
    norm.running_var_q.uniform_(0.5, 2)
    y = torch.randn(4, 5, 3, 3)
    scale, shift = (pair.view(1, -1, 1, 1) for pair in norm.folded())
    assert torch.equal(norm(y), torch.addcmul(shift, y, scale))
    reference = F.batch_norm(y, norm.running_mean_q, norm.running_var_q, norm.weight, norm.bias)
    assert torch.allclose(norm(y), reference, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "state", "used"),
    [
        ("calibrate", None, "q"),
        ("calibrate", "continuous", "c"),
        ("paper", None, "q"),
        ("off", None, "c"),
        ("off", "discrete", "c"),
    ],
)
def test_which_statistics_inference_uses(mode: str, state: str | None, used: str) -> None:
    norm = StateBatchNorm2d(1, mode=mode).eval()
    norm.running_mean_c.fill_(10)
    norm.running_mean_q.fill_(-10)
    with network_state(norm, state):
        out = float(norm(torch.zeros(1, 1, 1, 1)))
    assert (out < 0) == (used == "c")


class TestPaperMode:
    def test_y_q_is_x_convolved_with_W_q_on_the_same_x(self) -> None:
        net = network("paper").train()
        conv, norm, x = net[3], net[4], images()
        fed: list[torch.Tensor] = []
        conv.register_forward_pre_hook(lambda _, args: fed.append(args[0]))
        net(x)
        y_q = F.conv2d(fed[0], conv.quantized_weight(), conv.bias)
        mean, var = y_q.mean((0, 2, 3)), y_q.var((0, 2, 3))
        assert torch.allclose(norm.running_mean_q, 0.1 * mean, atol=1e-5)
        assert torch.allclose(norm.running_var_q, 0.9 + 0.1 * var, atol=1e-4)
        y_c = F.conv2d(fed[0], conv.continuous_weight(), conv.bias)
        assert torch.allclose(norm.running_mean_c, 0.1 * y_c.mean((0, 2, 3)), atol=1e-5)

    def test_every_kth_step(self) -> None:
        net = network("paper", every=3).train()
        seen = []
        for step in range(7):
            before = net[4].running_mean_q.clone()
            set_step(net, step)
            net(images())
            seen.append(not torch.equal(before, net[4].running_mean_q))
        assert seen == [True, False, False, True, False, False, True]

    def test_without_steps_every_one_counts(self) -> None:
        net = network("paper", every=3).train()
        for _ in range(2):
            before = net[4].running_mean_q.clone()
            net(images())
            assert not torch.equal(before, net[4].running_mean_q)

    def test_asking_changes_nothing(self) -> None:
        norm = network("paper", every=3).train()[4]
        assert [norm.wants_discrete for _ in range(4)] == [True] * 4

    def test_gradients_are_those_of_W_c_alone(self) -> None:
        grads = {}
        for mode in ("paper", "calibrate"):
            torch.manual_seed(1)
            net = network(mode).train()
            torch.manual_seed(2)
            net(images()).square().sum().backward()
            grads[mode] = net[3].logits.grad
        assert torch.equal(grads["paper"], grads["calibrate"])

    def test_eval_and_held_states_do_not_observe(self) -> None:
        net = network("paper").eval()
        net(images())
        net.train()
        with network_state(net, "continuous"):
            net(images())
        assert torch.equal(net[4].running_mean_q, torch.zeros(8))

    def test_the_bn_of_a_float_convolution_needs_one_set(self) -> None:
        assert network("paper")[1].mode == "off"

    @pytest.mark.parametrize("between", [nn.PReLU(8), nn.ReLU(), nn.ReLU(inplace=True)])
    def test_y_q_passes_through_what_stands_between(self, between: nn.Module) -> None:
        plain = nn.Sequential(
            nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3), between, nn.BatchNorm2d(8)
        )
        net = quantize(plain, 1, example_input=images(1), norm=NormConfig(mode="paper")).train()
        x = images()
        net(x)
        hidden = net[1](net[0](x))
        y_q = net[3](F.conv2d(hidden, net[2].quantized_weight(), net[2].bias))
        assert torch.allclose(net[4].running_mean_q, 0.1 * y_q.mean((0, 2, 3)), atol=1e-5)


class TestCalibration:
    def test_it_re_estimates_from_scratch_with_W_q(self) -> None:
        net = network("calibrate").train()
        net[4].running_mean_q.fill_(99)
        batches = [images() for _ in range(3)]
        calibrate(net, batches)
        means, variances = [], []
        for x in batches:
            y = F.conv2d(x, net[0].weight, net[0].bias)
            hidden = F.relu(F.batch_norm(y, None, None, net[1].weight, net[1].bias, True))
            y_q = F.conv2d(hidden, net[3].quantized_weight(), net[3].bias)
            means.append(y_q.mean((0, 2, 3)))
            variances.append(y_q.var((0, 2, 3)))
        assert torch.allclose(net[4].running_mean_q, torch.stack(means).mean(0), atol=1e-4)
        assert torch.allclose(net[4].running_var_q, torch.stack(variances).mean(0), rtol=1e-4)

    def test_it_changes_nothing_else(self) -> None:
        net = network("calibrate").train()
        net[0].eval()
        before = {name: value.clone() for name, value in net.state_dict().items()}
        calibrate(net, [images()])
        changed = {n for n, value in net.state_dict().items() if not torch.equal(value, before[n])}
        assert changed == {"4.running_mean_q", "4.running_var_q"}
        assert [module.training for module in net] == [False, True, True, True, True]
        assert all(norm._sums is None for norm in state_norms(net))

    def test_the_continuous_set_on_request(self) -> None:
        net = network("calibrate")
        calibrate(net, [images()], "continuous")
        assert not torch.equal(net[4].running_mean_c, torch.zeros(8))
        assert torch.equal(net[4].running_mean_q, torch.zeros(8))

    def test_other_modes_are_left_alone(self) -> None:
        for mode in ("paper", "off"):
            net = network(mode)
            calibrate(net, [images()])
            assert torch.equal(net[4].running_mean_q, torch.zeros(8))

    def test_a_batch_may_begin_with_the_input(self) -> None:
        x, labels = images(), torch.zeros(4)
        nets = [network("calibrate").eval() for _ in range(2)]
        nets[1].load_state_dict(nets[0].state_dict())
        calibrate(nets[0], [x])
        calibrate(nets[1], [[x, labels]])
        assert torch.equal(nets[0][4].running_mean_q, nets[1][4].running_mean_q)

    def test_no_batch_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"one batch at least.*make it anew\."):
            calibrate(network("calibrate"), iter([]))

    def test_an_error_inside_leaves_the_network_usable(self) -> None:
        net = network("calibrate")
        with pytest.raises(RuntimeError):
            estimate_statistics(net, [torch.zeros(1, 99, 8, 8)], "discrete")
        assert all(norm._sums is None for norm in state_norms(net))


def test_share_of_eps_at_a_small_T() -> None:
    conv = SLBConv2d(3, 8, 3, bits=4)
    net = nn.Sequential(conv, StateBatchNorm2d(8))
    shares = []
    for T in (1e-3, 1.0, 1e3):
        conv.temperature = T
        shares.append(eps_share(net, [images(50)]))
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.9
    assert shares[2] < 1e-3
    conv.temperature = 1.0
    y = F.conv2d(torch.ones(1, 3, 8, 8), conv.continuous_weight())
    assert y.isfinite().all()


def test_from_batch_norm_without_affine_pair() -> None:
    plain = nn.BatchNorm2d(3, affine=False)
    plain(torch.randn(8, 3, 4, 4) * 3 + 1)
    norm = StateBatchNorm2d.from_batch_norm(plain.eval(), "calibrate").eval()
    x = torch.randn(2, 3, 4, 4)
    assert torch.allclose(norm(x), plain(x), atol=1e-5)
    assert not any(p.requires_grad for p in norm.parameters())


def test_bad_arguments() -> None:
    with pytest.raises(ConfigError, match="mode of a state BN must be one of"):
        StateBatchNorm2d(3, mode="sometimes")
    with pytest.raises(ConfigError, match="every must be at least 1; got 0"):
        StateBatchNorm2d(3, mode="paper", every=0)
