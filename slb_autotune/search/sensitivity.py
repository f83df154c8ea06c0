"""Warm starts for mixed precision: what each layer alone costs at each bit-width.

From one trained float network, a layer's weights become s v, the nearest values of V under one
scale s, while all other layers stay float; the BN statistics are estimated again and the
validation loss is measured:

    cost(layer, bits) = loss(layer alone at bits) - loss(float network)

The costs are taken to add up, so the best allocation for a size is a multiple-choice knapsack,
which is solved exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slb_autotune import data
from slb_autotune.config.files import write_atomically
from slb_autotune.config.section import BIT_WIDTHS
from slb_autotune.config.trial import TrialConfig
from slb_autotune.data.base import CPU
from slb_autotune.errors import ConfigError, TrainingFailed
from slb_autotune.quant.convert import quantisable_layers
from slb_autotune.quant.expectation import value_set
from slb_autotune.quant.state_norm import estimate_statistics, state_norms
from slb_autotune.training.device import isolated, resolve_device
from slb_autotune.training.evaluation import load_run, measure
from slb_autotune.training.loop import train
from slb_autotune.training.network import formatted
from slb_autotune.training.run_folder import RunFolder
from slb_autotune.training.seeds import derive_seed
from slb_autotune.version import VERSION

COLUMNS = ("layer", "bits", "loss", "cost", "bytes")
FLOAT = 32

# Scales that are tried, on so many weights, before the best of them is refined on all.
_SCALES = 40
_SAMPLE = 2**16
_REFINEMENTS = 20

# Training images that stand in for a validation part where there is none.
_STAND_INS = 1000


def measure_sensitivity(
    config: TrialConfig,
    choices: Sequence[int],
    *,
    folder: Path,
    batches: int = 10,
    progress: Callable[[int, int], object] | None = None,
) -> pd.DataFrame:
    """A row for each layer and width: layer, bits, loss, cost, bytes.

    The float version of `config` is trained in `folder / "float"`, where a killed run goes on and
    a finished one is used as it is. BN statistics come from `batches` training batches, the same
    for every row. `bytes` are those of the layer's weights, ceil(weights * bits / 8). The table
    is kept in `folder / "sensitivity.csv"` and read again by a call with the same inputs; inputs
    that differ replace it, and another float run in that folder. `progress(done, total)` is
    called after each measurement.
    """
    widths = _checked_widths(choices)
    if batches < 1:
        raise ConfigError(f"batches must be at least 1; got {batches}")
    config = config.updated({"method": "float"})
    cache = _Cache(folder, {"config": config.digest, "choices": widths, "batches": batches})
    table = cache.read()
    if table is not None:
        return table
    device = resolve_device(config.device)
    network = _float_network(config, folder / "float", device)
    with isolated(config.threads, device):
        probe = Probe.of(network, config, batches, device)
        table = _measure_layers(probe, widths, progress)
    cache.write(table)
    return table


def best_allocations(table: pd.DataFrame, sizes: int = 5) -> list[dict[str, int]]:
    """The best bits of every layer at `sizes` budgets, from the smallest total to the largest.

    The budgets are spread evenly in log bytes. At each the sum of max(cost, 0) is the least there
    is: a cost below 0 is noise, and noise must not be paid for with bits. Of equal sums the one
    of fewer bytes is taken. An allocation that is best at several budgets stands once.
    """
    if sizes < 1:
        raise ConfigError(f"sizes must be at least 1; got {sizes}")
    if table.empty:
        raise ConfigError("the table of sensitivities is empty", "measure at least one layer.")
    costs: dict[str, dict[int, float]] = {}
    bytes_: dict[str, dict[int, int]] = {}
    columns = (table[name].tolist() for name in ("layer", "bits", "cost", "bytes"))
    for layer, bits, cost, size in zip(*columns, strict=True):
        # Written so that a NaN stays one, and is refused below.
        costs.setdefault(layer, {})[bits] = 0.0 if cost < 0 else cost
        bytes_.setdefault(layer, {})[bits] = size
    smallest = sum(min(row.values()) for row in bytes_.values())
    largest = sum(max(row.values()) for row in bytes_.values())
    front = _Front.of(costs, bytes_, largest)
    # Powers round: a budget a hair below a whole number of bytes is meant to be that number.
    budgets = np.geomspace(smallest, largest, sizes) * (1 + 1e-12)
    chosen = np.unique(np.searchsorted(front.bytes_, budgets, side="right") - 1)
    return [front.allocation(index) for index in chosen.tolist()]


def knapsack(
    costs: Mapping[str, Mapping[int, float]],
    bytes_: Mapping[str, Mapping[int, int]],
    budget: int,
) -> dict[str, int]:
    """The bits of every layer with the least total cost within `budget` bytes; exact.

        minimise sum_l cost(l, b_l)   subject to   sum_l bytes(l, b_l) <= budget

    Layer by layer all partial allocations are extended by all widths, and only those are dropped
    that another one matches or beats in both bytes and cost, or that cannot stay within the
    budget. Whatever completes a dropped one completes the other no worse, so nothing is lost:
    bytes are whole numbers, and adding the same cost to both never turns their order round, in
    floating point either. No list is longer than (budget - smallest total) / g + 1, with g the
    greatest common divisor of the differences between the widths' bytes. Of equal costs the
    allocation of fewer bytes is taken. Costs may be negative.
    """
    front = _Front.of(costs, bytes_, budget)
    return front.allocation(len(front.bytes_) - 1)


def sensitivity_order(table: pd.DataFrame) -> list[str]:
    """The layers from the most to the least sensitive, by their mean cost over the widths."""
    means = table.groupby("layer", sort=False)["cost"].mean()
    return [str(name) for name in means.sort_values(ascending=False, kind="stable").index]


def best_scale(weight: Tensor, bits: int) -> float:
    """The s that makes the squared error of s Q(weight / s) small, Q the nearest value of V.

    The best of 40 scales, then in turns q = Q(weight / s) and s = <weight, q> / <q, q>, neither
    of which can raise the error. At 1 bit that is the exact optimum, the mean of |weight|.
    """
    weight = _precise(weight).flatten()
    values = value_set(bits).double()
    largest = float(weight.abs().max())
    if largest == 0.0:
        return 0.0
    # Drawn, not every k-th: a kernel's positions come in turn, and k may pick one of them only.
    order = torch.randperm(len(weight), generator=torch.Generator().manual_seed(0))
    sample = weight[order[:_SAMPLE]]

    def error(scale: float) -> float:
        return float((_nearest(sample / scale, values) * scale - sample).square().sum())

    scale = min((largest * k / _SCALES for k in range(1, _SCALES + 1)), key=error)
    for _ in range(_REFINEMENTS):
        q = _nearest(weight / scale, values)
        before, scale = scale, float((weight @ q) / (q @ q))
        if abs(scale - before) <= 1e-6 * before:
            break
    return scale


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Every weight as the nearest of s V, with the layer's best scale s."""
    scale = best_scale(weight, bits)
    if scale == 0.0:
        return weight.detach().clone()
    values = value_set(bits).double()
    return (_nearest(_precise(weight) / scale, values) * scale).to(weight)


def _precise(weight: Tensor) -> Tensor:
    """In double precision, on the CPU: not every device has it."""
    return weight.detach().cpu().double()


def _nearest(scaled: Tensor, values: Tensor) -> Tensor:
    """The nearest of the uniform `values` on [-1, 1]; a tie takes the first, as argmax does."""
    last = len(values) - 1
    codes = ((scaled + 1) * (last / 2) - 0.5).ceil().clamp(0, last)
    return values[codes.int()]


@dataclass(frozen=True)
class Probe:
    """A trained float network, and the data on which a change of its weights is judged."""

    network: nn.Module
    config: TrialConfig
    info: data.DataInfo
    inputs: list[Tensor]
    split: data.Split

    @classmethod
    def of(
        cls, network: nn.Module, config: TrialConfig, batches: int, device: torch.device
    ) -> Probe:
        """Draw the batches for the BN statistics and find the validation part."""
        training, validation = data.load_train(config.data)
        seed = derive_seed(config.seed, "sensitivity", 0)
        drawn = islice(training.batches(config.batch_size, seed, device), batches)
        inputs = [formatted(x, config) for x, _ in drawn]
        split = _stand_in(config) if validation is None else validation
        return cls(network, config, data.info(config.data), inputs, split)

    def layers(self) -> list[str]:
        """The layers whose bits can be set, in the order in which they run."""
        side = self.info.image_size
        device = next(self.network.parameters()).device
        example = torch.zeros(1, self.info.in_channels, side, side, device=device)
        return quantisable_layers(self.network, example, keep_float=self.config.keep_float)

    def weight(self, layer: str) -> nn.Parameter:
        """The weight of a layer."""
        return self.network.get_parameter(f"{layer}.weight")

    @torch.no_grad()
    def loss(self, layer: str | None = None, bits: int = FLOAT) -> float:
        """Validation loss with `layer` alone at `bits`; the network is left bit for bit as it was.

        The state BNs of a float network use their continuous statistics.
        """
        norms = state_norms(self.network)
        borrowed = [t for norm in norms for t in (norm.running_mean_c, norm.running_var_c)]
        weight = None if layer is None else self.weight(layer)
        with _restored(borrowed if weight is None else [weight, *borrowed]):
            if weight is not None:
                weight.copy_(rounded(weight, bits))
            if norms:
                statistics = estimate_statistics(self.network, self.inputs, "continuous")
                for norm, (mean, var) in statistics.items():
                    norm.running_mean_c.copy_(mean)
                    norm.running_var_c.copy_(var)
            return measure(self.network, self.split, self.config, self.info)["loss"]


@contextmanager
def _restored(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Put the tensors back as they were, whatever happens."""
    saved = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in saved:
                tensor.copy_(before)


def _measure_layers(
    probe: Probe, widths: list[int], progress: Callable[[int, int], object] | None
) -> pd.DataFrame:
    layers = probe.layers()
    if not layers:
        raise ConfigError(
            f"network {probe.config.network.name!r} has no layer whose bits can be set",
            "take names out of keep_float.",
        )
    total = 1 + len(layers) * sum(bits != FLOAT for bits in widths)
    done = 0

    def measured(layer: str | None = None, bits: int = FLOAT) -> float:
        nonlocal done
        loss = probe.loss(layer, bits)
        done += 1
        if progress is not None:
            progress(done, total)
        # A layer that breaks the network costs more than anything can make good.
        return loss if math.isfinite(loss) else math.inf

    base = measured()
    if base == math.inf:
        raise TrainingFailed(
            "the validation loss of the float network is not a finite number",
            "lower lr, or train for more epochs.",
        )
    rows = []
    for layer in layers:
        weights = probe.weight(layer).numel()
        for bits in widths:
            loss = base if bits == FLOAT else measured(layer, bits)
            rows.append((layer, bits, loss, loss - base, ceil(weights * bits / 8)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _float_network(config: TrialConfig, folder: Path, device: torch.device) -> nn.Module:
    """The trained float network; a run of another configuration gives way."""
    files = RunFolder(folder)
    if files.config_path.exists() and files.config().digest != config.digest:
        files.clear()
    train(config, folder=folder)
    _, network = load_run(folder, device)
    return network


def _checked_widths(choices: Sequence[int]) -> list[int]:
    widths = sorted(set(choices))
    wrong = [bits for bits in widths if bits not in BIT_WIDTHS]
    if wrong or not widths:
        allowed = ", ".join(map(str, BIT_WIDTHS))
        got = wrong[0] if wrong else "none"
        raise ConfigError(f"choices must be of {allowed}; got {got}", "for example 1, 2, 4.")
    return widths


@dataclass(frozen=True)
class _Held:
    """A few examples, held in memory."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def steps(self, batch_size: int) -> int:
        return ceil(len(self) / batch_size)

    def batches(
        self, batch_size: int, seed: int | None = None, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """In order; a seed changes nothing."""
        for x, y in zip(self.x.split(batch_size), self.y.split(batch_size), strict=True):
            yield x.to(device), y.to(device)


def _stand_in(config: TrialConfig) -> data.Split:
    """Up to 1000 training images, none augmented.

    They are drawn from all over the set: where files are sorted by class, the first thousand may
    be of one class alone.
    """
    training, _ = data.load_train(config.updated({"data.augment": False}).data)
    count = min(_STAND_INS, len(training))
    x, y = next(training.batches(count, derive_seed(config.seed, "stand-in", 0)))
    return _Held(x, y)


class _Cache:
    """The table in a folder, and beside it the inputs that it was made from."""

    def __init__(self, folder: Path, key: dict[str, object]) -> None:
        self.table_path = folder / "sensitivity.csv"
        self.key_path = folder / "sensitivity.json"
        self.key = key

    def read(self) -> pd.DataFrame | None:
        """The table, or None where there is none of these inputs."""
        try:
            found = json.loads(self.key_path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        same = isinstance(found, dict) and all(found.get(k) == v for k, v in self.key.items())
        if not same or not self.table_path.exists():
            return None
        # Python's float() gives back the very number that was written; pandas 2 may not.
        return pd.read_csv(
            self.table_path,
            dtype={"layer": "str"},
            converters={"loss": float, "cost": float},
            keep_default_na=False,
        )

    def write(self, table: pd.DataFrame) -> None:
        """Keep the table; the inputs come last, so that they never stand beside another table."""
        self.key_path.unlink(missing_ok=True)
        write_atomically(self.table_path, table.to_csv(index=False).encode())
        text = json.dumps({**self.key, "version": VERSION}, indent=2)
        write_atomically(self.key_path, text.encode())


@dataclass(frozen=True)
class _Front:
    """All allocations that no other beats: bytes rise, costs fall.

    For each layer `parents` says which partial allocation an entry extends, `widths` by what.
    """

    layers: list[str]
    bytes_: NDArray[np.int64]
    costs: NDArray[np.float64]
    parents: list[NDArray[np.int64]]
    widths: list[NDArray[np.int64]]

    @classmethod
    def of(
        cls,
        costs: Mapping[str, Mapping[int, float]],
        bytes_: Mapping[str, Mapping[int, int]],
        budget: int,
    ) -> _Front:
        """Merge layer by layer, keeping the non-dominated ones that can stay within the budget."""
        _check_options(costs, bytes_)
        rest = sum(min(row.values()) for row in bytes_.values())
        if rest > budget:
            raise ConfigError(
                f"the smallest allocation takes {rest} bytes; the budget is {budget}",
                "raise the budget, offer fewer bits, or take a narrower network.",
            )
        front = cls([], np.zeros(1, np.int64), np.zeros(1), [], [])
        for layer, row in costs.items():
            rest -= min(bytes_[layer].values())
            front = front._extended(layer, row, bytes_[layer], budget - rest)
        return front

    def _extended(
        self, layer: str, costs: Mapping[int, float], bytes_: Mapping[int, int], room: int
    ) -> _Front:
        """Every entry with every width of one more layer, without what is beaten or too large."""
        widths = np.array(sorted(costs), np.int64)
        extra_bytes = np.array([bytes_[bits] for bits in widths.tolist()], np.int64)
        extra_costs = np.array([costs[bits] for bits in widths.tolist()], np.float64)
        total = (extra_bytes[:, None] + self.bytes_).ravel()
        cost = (self.costs + extra_costs[:, None]).ravel()
        order = np.lexsort((cost, total))
        order = order[total[order] <= room]
        least = np.minimum.accumulate(cost[order])
        order = order[np.append(True, cost[order][1:] < least[:-1])]
        choice, parent = np.divmod(order, len(self.bytes_))
        return _Front(
            [*self.layers, layer],
            total[order],
            cost[order],
            [*self.parents, parent],
            [*self.widths, widths[choice]],
        )

    def allocation(self, index: int) -> dict[str, int]:
        """The bits of every layer of one entry, followed back from the last layer."""
        bits: dict[str, int] = {}
        for layer, parents, widths in zip(
            reversed(self.layers), reversed(self.parents), reversed(self.widths), strict=True
        ):
            bits[layer] = int(widths[index])
            index = int(parents[index])
        return {layer: bits[layer] for layer in self.layers}


def _check_options(
    costs: Mapping[str, Mapping[int, float]], bytes_: Mapping[str, Mapping[int, int]]
) -> None:
    for layer in {**costs, **bytes_}:
        widths = set(costs.get(layer, ()))
        if not widths or widths != set(bytes_.get(layer, ())):
            raise ConfigError(
                f"layer {layer!r} must have both a cost and bytes at each of its widths; got "
                f"costs at {sorted(widths)} and bytes at {sorted(bytes_.get(layer, ()))}"
            )
        if any(math.isnan(cost) for cost in costs[layer].values()):
            raise ConfigError(f"a cost of layer {layer!r} is not a number", "measure it again.")
