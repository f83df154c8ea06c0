"""train(): Algorithm 1 of the paper, from a configuration to a trained quantised network.

Randomness is a function of (seed, epoch) alone, and a checkpoint is written after every epoch:
a run that was killed and goes on gives the same numbers as one that was not.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slb_autotune import data
from slb_autotune.config import TrialConfig
from slb_autotune.cost import Cost, check_memory, estimate, profile
from slb_autotune.data.super_resolution import psnr
from slb_autotune.errors import CheckpointError, TrainingFailed
from slb_autotune.machine import check_precision, free_memory, isolated, resolve_device
from slb_autotune.nets import build_network
from slb_autotune.optim import clip_gradients, learning_rate, make_optimizer
from slb_autotune.quant.convert import quantize
from slb_autotune.quant.diagnostics import all_codes, layer_diagnostics, weight_histograms
from slb_autotune.quant.layers import low_bit_layers
from slb_autotune.quant.schedules import temperature
from slb_autotune.quant.state_norm import calibrate, eps_share, set_step
from slb_autotune.quant.states import network_state, set_temperature
from slb_autotune.run_folder import RunFolder, load_tensors

Report = Callable[..., object]


@dataclass(frozen=True)
class Progress:
    """Where a run is within an epoch."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    temperature: float


@dataclass(frozen=True)
class TrainResult:
    """What a run gives: a row an epoch, the last metrics with the costs, and the network."""

    config: TrialConfig
    history: pd.DataFrame
    metrics: dict[str, float]
    network: nn.Module


def train(
    config: TrialConfig,
    report: Report | None = None,
    *,
    folder: Path | str | None = None,
    fresh: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> TrainResult:
    """Train the network that `config` describes.

    `report(**metrics)` is called after every epoch. With a `folder` the run can be killed at any
    moment: the same call goes on from the last whole epoch. `fresh` forgets what the folder holds,
    once it is sure that the new run can start.
    """
    device = resolve_device(config.device)
    check_precision(config, device)
    info = data.info(config.data)
    cost = estimate(config, info)
    available = free_memory(device)
    if available is not None:
        check_memory(cost, available, str(device))
    files = None if folder is None else RunFolder(folder)
    if files is not None and not fresh:
        files.check(config)
    with isolated(config.threads, device):
        trial = Trial(config, info, device)
        # Only now: what cannot start leaves no folder behind, and forgets nothing.
        if files is not None:
            if fresh:
                files.clear()
            files.open(config)
        trial.start(files)
        for epoch in range(trial.epochs_done, config.epochs):
            try:
                row = trial.run_epoch(epoch, progress)
            except TrainingFailed as failure:
                if files is not None:
                    files.save_result({"status": "failed", "reason": failure.message})
                raise
            if files is not None:
                files.save_checkpoint(trial.state())
            if report is not None:
                report(**row)
        result = trial.result(cost)
    if files is not None:
        files.save_result({"status": "done", "metrics": result.metrics})
    return result


class Trial:
    """One run in progress: network, data, optimiser, and the history so far."""

    def __init__(self, config: TrialConfig, info: data.DataInfo, device: torch.device) -> None:
        self.config, self.info, self.device = config, info, device
        self.train_split, self.val_split = data.load_train(config.data)
        torch.manual_seed(derive_seed(config.seed, "start", 0))
        self.network = make_network(config, info, device)
        self.optimizer = make_optimizer(self.network, config.optimizer)
        self.scaler = torch.amp.GradScaler("cuda", enabled=config.amp == "fp16")
        self.steps = self.train_split.steps(config.batch_size)
        self.history: list[dict[str, float]] = []
        self.histograms: dict[str, Tensor] = {}
        self.eps_share_start = math.nan
        self.quantised = bool(low_bit_layers(self.network))
        self.soft = is_soft(self.network)

    @property
    def epochs_done(self) -> int:
        """Whole epochs behind us."""
        return len(self.history)

    @property
    def images(self) -> int:
        """Training images that an epoch shows: full batches, or all in one that is not full."""
        return min(self.steps * self.config.batch_size, len(self.train_split))

    def start(self, files: RunFolder | None) -> None:
        """Take up the folder's checkpoint, or begin, and leave a checkpoint of the beginning."""
        if files is not None and (state := files.load_checkpoint()) is not None:
            self.resume(state)
            files.save_tables(state)
            return
        if self.soft:
            set_temperature(self.network, self.config.temperature.T_s)
            self.eps_share_start = eps_share(self.network, self._inputs("eps", 0, 1))
        if files is not None:
            files.save_checkpoint(self.state())

    def run_epoch(
        self, epoch: int, progress: Callable[[Progress], object] | None = None
    ) -> dict[str, float]:
        """One epoch of Algorithm 1, then calibration and validation; its row of metrics."""
        began = time.perf_counter()
        codes = all_codes(self.network)
        row = self.train_epoch(epoch, progress)
        self.calibrate(epoch)
        row |= self.validate()
        if self.quantised:
            total = layer_diagnostics(self.network, codes).iloc[-1]
            names = ("quantization_gap", "frozen_fraction", "flip_rate", "entropy")
            row |= {name: float(total[name]) for name in names if total[name] == total[name]}
            self._keep_histograms(epoch)
        row["seconds"] = time.perf_counter() - began
        self.history.append(row)
        return row

    def train_epoch(
        self, epoch: int, progress: Callable[[Progress], object] | None = None
    ) -> dict[str, float]:
        """Lines 1 to 7 of Algorithm 1, for the iterations of one epoch."""
        config = self.config
        torch.manual_seed(derive_seed(config.seed, "epoch", epoch))
        losses = Losses(epoch, self.steps, every=1 if self.device.type == "cpu" else 20)
        seed = derive_seed(config.seed, "batches", epoch)
        self.network.train()
        T = lr = math.nan
        for i, (x, y) in enumerate(self._batches(seed)):
            iteration = epoch * self.steps + i
            T = self._temperature(epoch, iteration)
            set_temperature(self.network, T, iteration / (config.epochs * self.steps))
            set_step(self.network, i)
            lr = self._set_learning_rate(iteration)
            self.optimizer.zero_grad(set_to_none=True)
            with self._autocast():
                # Lines 4 and 5: the state BNs take the statistics of y_c and y_q on the way.
                loss = task_loss(self.network(x), y, config, self.info)
            self.scaler.scale(loss * loss_scale(y, self.info)).backward()
            if config.optimizer.clip != "none":
                self.scaler.unscale_(self.optimizer)
                clip_gradients(self.network, config.optimizer, lr)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            losses.add(loss)
            if progress is not None:
                progress(Progress(epoch, config.epochs, i + 1, self.steps, losses.last, T))
        return {"epoch": epoch + 1, "train_loss": losses.mean(), "temperature": T, "lr": lr}

    def calibrate(self, epoch: int) -> None:
        """Re-estimate the statistics, where the state BN asks for it."""
        if self.soft and self.config.norm.mode == "calibrate":
            batches = self.config.norm.batches
            calibrate(self.network, self._inputs("calibrate", epoch, batches), "discrete")
            calibrate(self.network, self._inputs("calibrate", epoch, batches), "continuous")

    def _keep_histograms(self, epoch: int) -> None:
        for name, row in weight_histograms(self.network, epoch + 1).items():
            kept = self.histograms.get(name)
            self.histograms[name] = row if kept is None else torch.cat([kept, row])

    def validate(self) -> dict[str, float]:
        """Metrics on the validation part, where there is one."""
        if self.val_split is None:
            return {}
        return prefixed("val", measure(self.network, self.val_split, self.config, self.info))

    def _temperature(self, epoch: int, iteration: int) -> float:
        schedule = self.config.temperature
        per_epoch = schedule.update == "epoch"
        return temperature(
            schedule.schedule,
            epoch + 1 if per_epoch else iteration + 1,
            self.config.epochs * (1 if per_epoch else self.steps),
            schedule.T_s,
            schedule.T_e,
            flat_until=schedule.flat_until,
            flat_from=schedule.flat_from,
        )

    def _set_learning_rate(self, iteration: int) -> float:
        total = self.config.epochs * self.steps
        lr = learning_rate(self.config.lr_schedule, self.config.optimizer.lr, iteration, total)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def _batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self.train_split.batches(self.config.batch_size, seed, self.device):
            yield formatted(x, self.config), y

    def _inputs(self, purpose: str, epoch: int, count: int) -> Iterator[Tensor]:
        seed = derive_seed(self.config.seed, purpose, epoch)
        return (x for x, _ in islice(self._batches(seed), count))

    def _autocast(self) -> torch.autocast:
        return autocast(self.config, self.device)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: tensors, numbers and words only."""
        return {
            "epoch": self.epochs_done,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "history": self.history,
            "histograms": self.histograms,
            "eps_share_start": self.eps_share_start,
            "config": self.config.to_json(),
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        load_into(self.network, state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.history = list(state["history"])
        self.histograms = dict(state.get("histograms", {}))
        self.eps_share_start = state["eps_share_start"]
        if self.history:
            done = self.epochs_done / self.config.epochs
            set_temperature(self.network, self.history[-1]["temperature"], done)

    def result(self, cost: Cost) -> TrainResult:
        """The end: the last row with the costs, eps's share, and the seconds of all epochs."""
        history = pd.DataFrame(self.history)
        metrics = {**self.history[-1], **cost.metrics()}
        if self.soft:
            metrics["eps_share_start"] = self.eps_share_start
        metrics["seconds"] = float(history["seconds"].sum())
        metrics["train_images"] = self.images
        self.network.eval()
        return TrainResult(self.config, history, metrics, self.network)


class Losses:
    """The losses of an epoch; a loss that is not a number ends the run.

    On an accelerator reading a loss waits for the device, so they are read in groups.
    """

    def __init__(self, epoch: int, steps: int, every: int) -> None:
        self.epoch, self.steps, self.every = epoch, steps, every
        self.waiting: list[Tensor] = []
        self.values: list[float] = []

    def add(self, loss: Tensor) -> None:
        """Take the loss of the next step."""
        self.waiting.append(loss.detach())
        if len(self.waiting) >= self.every or len(self.values) + len(self.waiting) >= self.steps:
            self._read()

    def _read(self) -> None:
        for value in torch.stack(self.waiting).double().tolist():
            if not math.isfinite(value):
                last = f"{self.values[-1]:.4g}" if self.values else "none in this epoch"
                raise TrainingFailed(
                    f"the loss became {value} in epoch {self.epoch + 1}, "
                    f"step {len(self.values) + 1} of {self.steps}; last finite loss: {last}",
                    "lower lr, or T_e, or clip gradients (optimizer.clip).",
                )
            self.values.append(value)
        self.waiting.clear()

    @property
    def last(self) -> float:
        """The newest loss that was read."""
        return self.values[-1] if self.values else math.nan

    def mean(self) -> float:
        """The mean over the epoch."""
        return sum(self.values) / len(self.values)


def make_network(config: TrialConfig, info: data.DataInfo, device: torch.device) -> nn.Module:
    """The trial's quantised network on its device, drawn from the global random state."""
    network = build_network(config.network, info.in_channels, info.num_classes, info.image_size)
    if config.init.checkpoint is not None:
        state = load_tensors(Path(config.init.checkpoint))
        load_into(network, float_state(state))
    example = torch.zeros(1, info.in_channels, info.image_size, info.image_size)
    network = quantize(
        network,
        config.weight_bits,
        config.activation_bits,
        config.method,
        example,
        activation=config.activation,
        norm=config.norm,
        keep_float=config.keep_float,
        keep_weights=config.init.checkpoint is not None,
        spread=config.init.spread,
    ).to(device)
    if config.channels_last:
        for parameter in network.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return network


def float_state(state: dict[str, Any]) -> dict[str, Any]:
    """The state dict inside a checkpoint; a state BN's continuous statistics become a BN's own."""
    state = state.get("network", state.get("state_dict", state))
    if not any(name.endswith("running_mean_c") for name in state):
        return state
    renamed: dict[str, Any] = {}
    for name, value in state.items():
        if name.endswith("running_mean_c"):
            renamed[f"{name.removesuffix('running_mean_c')}num_batches_tracked"] = torch.tensor(0)
        if not name.endswith(("running_mean_q", "running_var_q")):
            renamed[name.removesuffix("_c") if "running_" in name else name] = value
    return renamed


def load_into(network: nn.Module, state: dict[str, Any]) -> None:
    """Load a state dict, and say plainly where it does not fit."""
    try:
        network.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        lines = str(error).split("\n\t")
        raise CheckpointError(
            f"the checkpoint does not fit the network: {lines[min(1, len(lines) - 1)].strip()}",
            "it must be of the same network, width and bits.",
        ) from error


def formatted(x: Tensor, config: TrialConfig) -> Tensor:
    """The batch in the memory format of the trial."""
    return x.contiguous(memory_format=torch.channels_last) if config.channels_last else x


def autocast(config: TrialConfig, device: torch.device) -> torch.autocast:
    """Mixed precision as the configuration asks for it."""
    dtype = torch.float16 if config.amp == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype, enabled=config.amp != "off")


def task_loss(output: Tensor, target: Tensor, config: TrialConfig, info: data.DataInfo) -> Tensor:
    """Cross-entropy, or the mean squared error of the residual.

    A super-resolution network adds its residual to the input, so the error of its output is that
    of the residual.
    """
    if info.task == "classification":
        return F.cross_entropy(output, target, label_smoothing=config.label_smoothing)
    return F.mse_loss(output, target)


def loss_scale(target: Tensor, info: data.DataInfo) -> float:
    """VDSR's loss is half the sum of squares of a patch: its learning rate is made for that."""
    return 1.0 if info.task == "classification" else target[0].numel() / 2


def measure(
    network: nn.Module, split: data.Split, config: TrialConfig, info: data.DataInfo
) -> dict[str, float]:
    """Metrics of the quantised network, and of the continuous one ending in `_continuous`."""
    network.eval()
    values = _measure(network, split, config, info)
    if is_soft(network):
        with network_state(network, "continuous"):
            continuous = _measure(network, split, config, info)
        values |= {f"{name}_continuous": value for name, value in continuous.items()}
    return values


@torch.no_grad()
def _measure(
    network: nn.Module, split: data.Split, config: TrialConfig, info: data.DataInfo
) -> dict[str, float]:
    device = next(network.parameters()).device
    losses: list[Tensor] = []
    scores: list[Tensor] = []
    top5: list[Tensor] = []
    for x, y in split.batches(config.batch_size, device=device):
        with autocast(config, device):
            output = network(formatted(x, config)).float()
        losses.append(task_loss(output, y, config, info) * len(y))
        if info.task == "classification":
            best = output.topk(min(5, output.shape[1])).indices == y.unsqueeze(1)
            scores.append(best[:, 0].sum())
            top5.append(best.sum())
        else:
            scores.append(torch.tensor(psnr(output, y, config.data.scale)))
    count = len(split)
    loss = float(torch.stack(losses).sum()) / count
    score = float(torch.stack(scores).sum()) / count
    if info.task == "super_resolution":
        return {"loss": loss, "psnr": score}
    return {
        "loss": loss,
        "accuracy": 100 * score,
        "accuracy_top5": 100 * float(torch.stack(top5).sum()) / count,
    }


def is_soft(network: nn.Module) -> bool:
    """Whether a weight of training differs from the one of inference."""
    return any(layer.soft for layer in low_bit_layers(network).values())


def prefixed(prefix: str, values: dict[str, float]) -> dict[str, float]:
    """The same values under `prefix_name`."""
    return {f"{prefix}_{name}": value for name, value in values.items()}


def load_run(folder: Path | str, device: torch.device) -> tuple[TrialConfig, nn.Module]:
    """The configuration and the trained network of a finished run, in eval mode."""
    files = RunFolder(folder)
    config = files.config()
    state = files.load_checkpoint()
    if state is None or state["epoch"] < config.epochs:
        done = 0 if state is None else state["epoch"]
        raise CheckpointError(
            f"the run in {files.path} has done {done} of {config.epochs} epochs",
            "finish it first: `slb-autotune train` with the same configuration goes on.",
        )
    blank = config.updated({"init.checkpoint": None})
    with isolated(config.threads, device):
        network = make_network(blank, data.info(config.data), device)
    load_into(network, state["network"])
    set_temperature(network, state["history"][-1]["temperature"], 1.0)
    return config, network.eval()


def evaluate(folder: Path | str, *, device: str = "auto") -> dict[str, float]:
    """Metrics of a finished run on the test set, which training never touches."""
    target = resolve_device(device)
    config, network = load_run(folder, target)
    if target.type != "cuda":
        config = config.updated({"amp": "off"})
    info = data.info(config.data)
    split = data.load_test(config.data)
    with isolated(config.threads, target):
        values = measure(network, split, config, info)
    cost = estimate(config, info)
    return {**prefixed("test", values), **cost.metrics(), "test_images": len(split)}


def describe_layers(folder: Path | str) -> pd.DataFrame:
    """A row a layer of a finished run: its cost, and how far its weights hardened."""
    config, network = load_run(folder, torch.device("cpu"))
    info = data.info(config.data)
    table = profile(network, (info.in_channels, info.image_size, info.image_size))
    hardening = layer_diagnostics(network).drop(columns=["bits", "weights", "flip_rate"])
    return table.merge(hardening, on="name", how="left")


def derive_seed(seed: int, purpose: str, epoch: int) -> int:
    """A seed of its own for every purpose and epoch."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
