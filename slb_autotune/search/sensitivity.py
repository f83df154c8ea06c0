"""Sensitivity of a network's layers: how much loss each one alone costs at each bit-width.

From one trained float network, a layer's weights become s v, the nearest values of V under one
scale s, while all other layers stay float; the BN statistics are estimated again and the
validation loss is measured:

    cost(layer, bits) = loss(layer alone at bits) - loss(float network)

`allocations.py` chooses the bits of all layers from these costs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from slb_autotune import data
from slb_autotune.config.files import write_atomically
from slb_autotune.config.section import BIT_WIDTHS
from slb_autotune.config.trial import TrialConfig
from slb_autotune.data.base import CPU
from slb_autotune.errors import ConfigError, TrainingFailed
from slb_autotune.quant.convert import quantisable_layers
from slb_autotune.quant.state_norm import estimate_statistics, state_norms
from slb_autotune.quant.values import rounded
from slb_autotune.training.device import isolated, resolve_device
from slb_autotune.training.evaluation import load_run, measure
from slb_autotune.training.loop import train
from slb_autotune.training.network import formatted
from slb_autotune.training.run_folder import RunFolder
from slb_autotune.training.seeds import derive_seed
from slb_autotune.version import VERSION

COLUMNS = ("layer", "bits", "loss", "cost", "bytes")
FLOAT = 32

# Training images that replace the validation split where there is none.
_SUBSTITUTE_IMAGES = 1000


def measure_sensitivity(
    config: TrialConfig,
    choices: Sequence[int],
    *,
    folder: Path,
    batches: int = 10,
    progress: Callable[[int, int], object] | None = None,
) -> pd.DataFrame:
    """One row per layer and width: layer, bits, loss, cost, bytes.

    The float version of `config` is trained in `folder / "float"`; a killed run is resumed and a
    finished one reused. BN statistics come from `batches` training batches, the same for every
    row. `bytes` are those of the layer's weights, ceil(weights * bits / 8). The table is cached
    in `folder / "sensitivity.csv"`; a call with other inputs overwrites it, and the float run of
    another configuration. `progress(done, total)` is called after each measurement.
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
        table = measure_layers(probe, widths, progress)
    cache.write(table)
    return table


@dataclass(frozen=True)
class Probe:
    """A trained float network, and the data on which changes of its weights are measured."""

    network: nn.Module
    config: TrialConfig
    info: data.DataInfo
    inputs: list[Tensor]
    split: data.Split

    @classmethod
    def of(
        cls, network: nn.Module, config: TrialConfig, batches: int, device: torch.device
    ) -> Probe:
        """Draw the batches for the BN statistics and load the validation split."""
        training, validation = data.load_train(config.data)
        seed = derive_seed(config.seed, "sensitivity", 0)
        drawn = islice(training.batches(config.batch_size, seed, device), batches)
        inputs = [formatted(x, config) for x, _ in drawn]
        split = _substitute(config) if validation is None else validation
        return cls(network, config, data.info(config.data), inputs, split)

    def layers(self) -> list[str]:
        """The layers whose bits can be set, in the order in which they run."""
        device = next(self.network.parameters()).device
        example = torch.zeros(1, *self.info.input_shape, device=device)
        return quantisable_layers(self.network, example, keep_float=self.config.keep_float)

    def weight(self, layer: str) -> nn.Parameter:
        """The weight of a layer."""
        return self.network.get_parameter(f"{layer}.weight")

    @torch.no_grad()
    def loss(self, layer: str | None = None, bits: int = FLOAT) -> float:
        """Validation loss with `layer` alone at `bits`; the network is restored bit for bit.

        The state BNs of a float network use their continuous statistics.
        """
        norms = state_norms(self.network)
        buffers = [t for norm in norms for t in (norm.running_mean_c, norm.running_var_c)]
        weight = None if layer is None else self.weight(layer)
        with _restored(buffers if weight is None else [weight, *buffers]):
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
    """Restore the tensors afterwards, also after an error."""
    saved = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in saved:
                tensor.copy_(before)


def measure_layers(
    probe: Probe, widths: Sequence[int], progress: Callable[[int, int], object] | None = None
) -> pd.DataFrame:
    """The table of `measure_sensitivity`; a loss that is not finite costs infinity."""
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
        # No other layer can make up for one that breaks the network.
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
    """The trained float network; a run of another configuration is deleted."""
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
class _Examples:
    """A split of a few examples in memory, already prepared."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def steps(self, batch_size: int) -> int:
        return ceil(len(self) / batch_size)

    def batches(
        self, batch_size: int, seed: int | None = None, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the examples in order; a seed changes nothing."""
        for x, y in zip(self.x.split(batch_size), self.y.split(batch_size), strict=True):
            yield x.to(device), y.to(device)


def _substitute(config: TrialConfig) -> data.Split:
    """Up to 1000 training images without augmentation, in place of a validation split.

    They are drawn from the whole set: where files are sorted by class, the first thousand may be
    of one class alone.
    """
    training, _ = data.load_train(config.updated({"data.augment": False}).data)
    count = min(_SUBSTITUTE_IMAGES, len(training))
    x, y = next(training.batches(count, derive_seed(config.seed, "stand-in", 0)))
    return _Examples(x, y)


class _Cache:
    """The table in a folder, and beside it the inputs that it was computed from."""

    def __init__(self, folder: Path, key: dict[str, object]) -> None:
        self.table_path = folder / "sensitivity.csv"
        self.key_path = folder / "sensitivity.json"
        self.key = key

    def read(self) -> pd.DataFrame | None:
        """The table, or None where there is none for these inputs."""
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
        """Save the table, then the inputs: a kill in between never pairs them with another."""
        self.key_path.unlink(missing_ok=True)
        write_atomically(self.table_path, table.to_csv(index=False).encode())
        text = json.dumps({**self.key, "version": VERSION}, indent=2)
        write_atomically(self.key_path, text.encode())
