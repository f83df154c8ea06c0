"""DistributedDataParallel and FSDP2 on two processes: the numbers of one process."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from slb_autotune.quant import SLBConv2d, SLBLinear, expectation, set_temperature
from tests.quant.networks import SHAPE, small_network

BITS = (1, 2, 4)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="gloo is not part of this torch"),
]


def _process(rank: int, file: str, work: Callable[[int], None]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    expectation._SMALL = 0  # as in a large layer, whose backward pass computes P again
    try:
        work(rank)
    finally:
        dist.destroy_process_group()


def run_on_two(work: Callable[[int], None], folder: Path) -> None:
    mp.spawn(_process, (str(folder / "meeting"), work), nprocs=2)


def images(count: int) -> torch.Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def without_norms(bits: int) -> nn.Module:
    """No BN, so that the mean over two halves of a batch is that over the batch."""
    torch.manual_seed(0)
    return nn.Sequential(
        SLBConv2d(3, 6, 3, bits=bits), nn.ReLU(), nn.Flatten(), SLBLinear(6 * 36, 4, bits=bits)
    )


def train_step(network: nn.Module, x: torch.Tensor, T: float = 3.0) -> None:
    set_temperature(network, T)
    network(x).square().mean().backward()


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def check_same(one: nn.Module, other: nn.Module, gradients: bool) -> None:
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        left, right = (p.grad, q.grad) if gradients else (p.detach(), q.detach())
        torch.testing.assert_close(_full(left), _full(right), msg=lambda text, n=name: n + text)
    for p, q in zip(one.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(p, q)


def _ddp_on_halves(rank: int) -> None:
    x = images(8)
    for bits in BITS:
        alone, joined = without_norms(bits), without_norms(bits)
        train_step(alone, x)
        train_step(DistributedDataParallel(joined), x[4 * rank : 4 * rank + 4])
        check_same(joined, alone, gradients=True)


def _ddp_with_norms(rank: int) -> None:
    x = images(4)
    for bits in BITS:
        for mode in ("paper", "calibrate"):
            alone = small_network(bits, mode).train()
            joined = copy.deepcopy(alone)
            train_step(alone, x)
            train_step(DistributedDataParallel(joined), x)
            check_same(joined, alone, gradients=True)


def _sharded(network: nn.Module) -> nn.Module:
    for layer in network:
        if next(layer.parameters(), None) is not None:
            fully_shard(layer)
    return fully_shard(network)


def _fsdp_on_halves(rank: int) -> None:
    x = images(8)
    for bits in BITS:
        alone, shared = without_norms(bits), _sharded(without_norms(bits))
        assert shared[0].logits.to_local().shape[0] == 2**bits // 2
        train_step(alone, x)
        train_step(shared, x[4 * rank : 4 * rank + 4])
        check_same(shared, alone, gradients=True)


def _fsdp_with_norms(rank: int) -> None:
    x = images(4)
    for bits in BITS:
        for mode in ("paper", "calibrate"):
            alone = small_network(bits, mode).train()
            shared = _sharded(copy.deepcopy(alone))
            optimisers = [torch.optim.SGD(n.parameters(), lr=0.1) for n in (alone, shared)]
            for T in (1.0, 4.0):
                for network, optimiser in zip((alone, shared), optimisers, strict=True):
                    optimiser.zero_grad()
                    train_step(network, x, T)
                    optimiser.step()
                check_same(shared, alone, gradients=False)
            torch.testing.assert_close(shared.eval()(x), alone.eval()(x))


@pytest.mark.parametrize(
    "work", [_ddp_on_halves, _ddp_with_norms, _fsdp_on_halves, _fsdp_with_norms]
)
def test_two_processes_give_the_numbers_of_one(
    work: Callable[[int], None], tmp_path: Path
) -> None:
    run_on_two(work, tmp_path)
