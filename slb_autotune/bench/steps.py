"""Speed of training: ratios, both sides interleaved in one run.

Timings on a shared machine are noisy and drift. A step is compared with the float steps of the
same turn, and the median over many turns is the ratio. The ratio of the fastest steps is
reported too, within a few turns and then as a median: the fastest steps of a whole run may be
minutes apart, one side's in a quiet moment and the other's not.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slb_autotune.config.methods import METHODS, activation_widths
from slb_autotune.config.trial import TrialConfig
from slb_autotune.data import DataInfo, info
from slb_autotune.errors import ConfigError, nearest
from slb_autotune.nets import build_network
from slb_autotune.quant.state_norm import set_step
from slb_autotune.quant.states import set_temperature
from slb_autotune.training.device import isolated, keep_freed_memory
from slb_autotune.training.loop import Trial
from slb_autotune.training.network import formatted, make_network
from slb_autotune.training.optim import make_optimizer

_CPU = torch.device("cpu")
_IMAGES = DataInfo("classification", 3, 10, 32)

Sides = Mapping[str, Mapping[str, object]]

# What is compared with the float step. T = 1 stands for the middle of training.
# "float again" is the same network once more: how far its ratio is from 1 is the noise.
SIDES: dict[str, dict[str, object]] = {
    "float": {"method": "float"},
    "float again": {"method": "float"},
    "slb 1 bit": {"weight_bits": 1},
    "slb 2 bits": {"weight_bits": 2},
    "slb 4 bits": {"weight_bits": 4},
    "slb 1 bit, paper SBN": {"weight_bits": 1, "norm.mode": "paper"},
    "slb 1 bit, paper SBN every 4th": {"weight_bits": 1, "norm.mode": "paper", "norm.every": 4},
}

Step = Callable[[], None]

# Where its tensors happen to lie in memory makes a network faster or slower by a few percent, for
# as long as it lives: so all are built again after so many turns, in another order.
FRESH_TURNS = 5


def method_sides(methods: Sequence[str]) -> dict[str, dict[str, object]]:
    """SLB's sides, and for each other method its fewest bits, activations included."""
    sides = dict(SIDES)
    for name in methods:
        if name in ("slb", "float"):
            continue
        bits = min(METHODS[name].details["weight_bits"])
        inputs = min(activation_widths(name, "method"), default=32)
        change = {"method": name, "weight_bits": bits, "activation_bits": inputs}
        sides[f"{name} {bits}/{inputs}"] = change
    return sides


def chosen_sides(sides: Sides, names: Sequence[str]) -> dict[str, Mapping[str, object]]:
    """The named sides and the float ones; all where none is named."""
    for name in names:
        if name not in sides:
            raise ConfigError(f"no side is called {name!r}", nearest(name, sides))
    kept = ("float", "float again", *names) if names else tuple(sides)
    return {name: change for name, change in sides.items() if name in kept}


def step(
    networks: list[str],
    seconds: float,
    threads: int,
    batch_size: int,
    methods: Sequence[str],
    names: Sequence[str] = (),
) -> pd.DataFrame:
    """A row for each network and side: its step over ours in float, by CPU and by wall time."""
    sides = chosen_sides(method_sides(methods), names)
    rows = []
    for network in networks:
        base = TrialConfig.from_mapping({"network.name": network, "data.name": "cifar10"})
        keep_freed_memory()
        cpu = _measure_sides(base, sides, batch_size, seconds, 1, time.process_time)
        wall = _measure_sides(base, sides, batch_size, seconds, threads, time.perf_counter)
        memory = peak_memory(network, batch_size, {"plain torch": {}, **sides})
        rows += [
            {
                "network": network,
                "side": side,
                "cpu_ms": 1e3 * cpu[side].min(),
                "cpu_ratio": ratio(cpu, side),
                "cpu_best": best_ratio(cpu, side),
                "wall_ms": 1e3 * wall[side].min(),
                "wall_ratio": ratio(wall, side),
                "wall_best": best_ratio(wall, side),
                "turns": min(len(cpu), len(wall)),
                "peak_mb": memory[side] / 1e6,
                "memory_ratio": memory[side] / memory["float"],
            }
            for side in memory
        ]
    return pd.DataFrame(rows)


def ratio(times: pd.DataFrame, side: str) -> float:
    """Median over the turns of a side's step / the mean of both float steps of that turn."""
    return float((times[side] / times[["float", "float again"]].mean(axis=1)).median())


def best_ratio(times: pd.DataFrame, side: str) -> float:
    """The same of the fastest steps that each set of networks took in its turns."""
    return ratio(times.groupby(times.index // FRESH_TURNS).min(), side)


def _measure_sides(
    base: TrialConfig,
    sides: Sides,
    batch_size: int,
    seconds: float,
    threads: int,
    clock: Callable[[], float],
) -> pd.DataFrame:
    """Seconds of a step, one column per side, one row per turn that fits into `seconds`."""
    with isolated(threads, _CPU):
        makers: dict[str, Callable[[], Step]] = {
            "plain torch": lambda: _plain_step(base, batch_size)
        }
        # Statistics of every fourth step make one step in four slower: there a turn is four steps.
        period = {side: int(str(change.get("norm.every", 1))) for side, change in sides.items()}
        for side, change in sides.items():
            makers[side] = partial(_turn, base, change, batch_size, period[side])
        times = interleave(makers, seconds, clock)
        return times / pd.Series(period).reindex(times.columns, fill_value=1)


def interleave(
    makers: Mapping[str, Callable[[], Step]], seconds: float, clock: Callable[[], float]
) -> pd.DataFrame:
    """Seconds of a step of each side, one row per turn; three turns at least."""
    # In a new order every turn, so that no side always runs after the same one.
    random = np.random.default_rng(0)
    turns: list[dict[str, float]] = []
    end = time.perf_counter() + seconds
    while len(turns) < 3 or time.perf_counter() < end:
        if len(turns) % FRESH_TURNS == 0:
            steps = _fresh(makers, random.permutation(list(makers)).tolist())
        spent = {}
        for name in random.permutation(list(makers)).tolist():
            began = clock()
            steps[name]()
            spent[name] = clock() - began
        turns.append(spent)
    return pd.DataFrame(turns)[list(makers)]


def _fresh(makers: Mapping[str, Callable[[], Step]], order: Sequence[str]) -> dict[str, Step]:
    """Every side built and warmed up."""
    steps = {name: makers[name]() for name in order}
    for run in steps.values():
        run()
    return steps


def _batch(batch_size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch_size, 3, 32, 32, generator=generator)
    return x, torch.randint(10, (batch_size,), generator=generator)


def _step(base: TrialConfig, change: Mapping[str, object], batch_size: int) -> Step:
    """One training step of our network: as `Trial.train_epoch` takes it."""
    config = base.updated(change)
    network = make_network(config, _IMAGES, _CPU).train()
    optimizer = make_optimizer(network, config.optimizer)
    x, y = _batch(batch_size)
    x = formatted(x, config)
    steps = count()

    def run() -> None:
        set_temperature(network, 1.0)
        set_step(network, next(steps))
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(network(x), y).backward()
        optimizer.step()

    return run


def _turn(base: TrialConfig, change: Mapping[str, object], batch_size: int, steps: int) -> Step:
    return repeated(_step(base, change, batch_size), steps)


def _plain_step(base: TrialConfig, batch_size: int) -> Step:
    """The same network in plain torch: NCHW, eager, torch's own BN and SGD."""
    network: nn.Module = build_network(base.network, 3, 10, 32).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    x, y = _batch(batch_size)

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()

    return run


def peak_memory(network: str, batch_size: int, sides: Sides) -> dict[str, float]:
    """Bytes that three steps of each side take, each in a process of its own."""
    peaks = {}
    for side, change in sides.items():
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            peaks[side] = pool.submit(_peak_of_side, network, side, change, batch_size).result()
    return peaks


def _peak_of_side(network: str, side: str, change: Mapping[str, object], batch_size: int) -> float:
    torch.set_num_threads(1)
    base = TrialConfig.from_mapping({"network.name": network, "data.name": "cifar10"})
    before = _resident_peak()
    if side == "plain torch":
        run = _plain_step(base, batch_size)
    else:
        run = _step(base, change, batch_size)
    for _ in range(3):
        run()
    return _resident_peak() - before


def _resident_peak() -> float:
    """Bytes resident at most so far.

    On Linux the kernel's own mark, since getrusage's is inherited from the parent process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return 1024.0 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def epoch(images: int, rounds: int, root: str | None) -> pd.DataFrame:
    """A training epoch of 1-bit ResNet20 over its bare steps; calibration and validation apart.

    A ratio is the median over the rounds, each side against the bare steps of the same round.
    Without `root` the images are random bytes in the layout of CIFAR-10: reading and augmenting
    them costs the same.
    """
    with _cifar10(root, images) as folder:
        config = TrialConfig.from_mapping(
            {
                "data.name": "cifar10",
                "data.root": folder,
                "data.train_images": images,
                "data.val_fraction": 0.02,
                "epochs": 100,
            }
        )
        with isolated(1, _CPU):
            trial = Trial(config, info(config.data), _CPU)
            bare = _step(config, {}, config.batch_size)
            work: dict[str, Callable[[int], object]] = {
                "bare steps": lambda _: repeated(bare, trial.steps)(),
                "epoch": trial.train_epoch,
                "calibration": trial.calibrate,
                "validation": lambda _: trial.validate(),
            }
            bare()
            rows = [
                {what: _cpu(partial(run, number)) for what, run in work.items()}
                for number in range(rounds)
            ]
    times = pd.DataFrame(rows)
    ratios = times.div(times["bare steps"], axis=0).median()
    return pd.DataFrame({"what": list(times), "cpu_s": times.min(), "ratio": ratios}).reset_index(
        drop=True
    )


def repeated(work: Step, times: int) -> Step:
    """`work`, so many times over."""

    def run() -> None:
        for _ in range(times):
            work()

    return run


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@contextmanager
def _cifar10(root: str | None, images: int) -> Iterator[str]:
    """The folder of the real set, or a temporary one of random bytes in its binary layout."""
    if root is not None:
        yield root
        return
    random = np.random.default_rng(0)
    with TemporaryDirectory() as folder:
        batches = Path(folder) / "cifar-10-batches-bin"
        batches.mkdir()
        for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
            records = random.integers(0, 256, (10_000, 3073), dtype=np.uint8)
            records[:, 0] %= 10
            records.tofile(batches / f"{name}.bin")
        yield folder
