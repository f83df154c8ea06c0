"""train(): Algorithm 1 of the paper, from a configuration to a trained quantised network.

Randomness is a function of (seed, epoch) alone, and a checkpoint is written after every epoch:
a run that was killed and resumed gives the same numbers as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from slb_autotune import data
from slb_autotune.config.trial import TrialConfig
from slb_autotune.cost import Cost, check_memory, estimate
from slb_autotune.errors import TrainingFailed
from slb_autotune.quant.diagnostics import all_codes, layer_diagnostics, weight_histograms
from slb_autotune.quant.layers import low_bit_layers
from slb_autotune.quant.schedules import temperature
from slb_autotune.quant.state_norm import calibrate, eps_share, set_step
from slb_autotune.quant.states import set_temperature
from slb_autotune.training.device import check_precision, free_memory, isolated, resolve_device
from slb_autotune.training.evaluation import measure, prefixed, task_loss
from slb_autotune.training.network import autocast, formatted, is_soft, load_into, make_network
from slb_autotune.training.optim import clip_gradients, learning_rate, make_optimizer
from slb_autotune.training.run_folder import RunFolder
from slb_autotune.training.seeds import derive_seed

Report = Callable[..., object]


@dataclass(frozen=True)
class Progress:
    """The position of a run within an epoch."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    temperature: float


@dataclass(frozen=True)
class TrainResult:
    """A finished run: one row per epoch, the last metrics with the costs, and the network."""

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
    moment: the same call resumes from the last complete epoch. `fresh` deletes the run that the
    folder holds, once it is certain that the new one can start.
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
        # Only now: a run that cannot start creates no folder and deletes nothing.
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
        """The number of complete epochs."""
        return len(self.history)

    @property
    def images(self) -> int:
        """Training images per epoch: those of full batches, or all in one partial batch."""
        return min(self.steps * self.config.batch_size, len(self.train_split))

    def start(self, files: RunFolder | None) -> None:
        """Resume from the folder's checkpoint, or initialise the run and save a checkpoint."""
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
        """One epoch of Algorithm 1, then calibration and validation; the epoch's metrics."""
        started = time.perf_counter()
        codes = all_codes(self.network)
        row = self.train_epoch(epoch, progress)
        self.calibrate(epoch)
        self.network.eval()  # whatever is measured from here on changes nothing
        row |= self.validate()
        if self.quantised:
            total = layer_diagnostics(self.network, codes).iloc[-1]
            names = ("quantization_gap", "frozen_fraction", "flip_rate", "entropy")
            row |= {name: float(total[name]) for name in names if not math.isnan(total[name])}
            self._keep_histograms(epoch)
        row["seconds"] = time.perf_counter() - started
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
                # Lines 4 and 5: in the same pass the state BNs update the statistics of y_c, y_q.
                loss = task_loss(self.network(x), y, self.info, config.label_smoothing)
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
        """Re-estimate the statistics of the state BNs, in the mode `calibrate`."""
        if self.soft and self.config.norm.mode == "calibrate":
            batches = self.config.norm.batches
            calibrate(self.network, self._inputs("calibrate", epoch, batches), "discrete")
            calibrate(self.network, self._inputs("calibrate", epoch, batches), "continuous")

    def validate(self) -> dict[str, float]:
        """Metrics on the validation split, if there is one."""
        if self.val_split is None:
            return {}
        return prefixed("val", measure(self.network, self.val_split, self.config, self.info))

    def _keep_histograms(self, epoch: int) -> None:
        for name, row in weight_histograms(self.network, epoch + 1).items():
            kept = self.histograms.get(name)
            self.histograms[name] = row if kept is None else torch.cat([kept, row])

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
        """The content of a checkpoint: tensors, numbers and strings only."""
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
        """Restore the state of a checkpoint."""
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
        """The last row of metrics, with the costs, eps's share and the seconds of all epochs."""
        history = pd.DataFrame(self.history)
        metrics = {**self.history[-1], **cost.metrics()}
        if self.soft:
            metrics["eps_share_start"] = self.eps_share_start
        metrics["seconds"] = float(history["seconds"].sum())
        metrics["train_images"] = self.images
        self.network.eval()
        return TrainResult(self.config, history, metrics, self.network)


class Losses:
    """The losses of an epoch; a loss that is not finite fails the run.

    Reading a loss synchronises with the device, so on an accelerator they are read in groups.
    """

    def __init__(self, epoch: int, steps: int, every: int) -> None:
        self.epoch, self.steps, self.every = epoch, steps, every
        self.pending: list[Tensor] = []
        self.values: list[float] = []

    def add(self, loss: Tensor) -> None:
        """Add the loss of the next step."""
        self.pending.append(loss.detach())
        if len(self.pending) >= self.every or len(self.values) + len(self.pending) >= self.steps:
            self._read()

    def _read(self) -> None:
        for value in torch.stack(self.pending).tolist():
            if not math.isfinite(value):
                last = f"{self.values[-1]:.4g}" if self.values else "none in this epoch"
                raise TrainingFailed(
                    f"the loss became {value} in epoch {self.epoch + 1}, "
                    f"step {len(self.values) + 1} of {self.steps}; last finite loss: {last}",
                    "lower lr, or T_e, or clip gradients (optimizer.clip).",
                )
            self.values.append(value)
        self.pending.clear()

    @property
    def last(self) -> float:
        """The latest loss that was read."""
        return self.values[-1] if self.values else math.nan

    def mean(self) -> float:
        """The mean loss of the epoch."""
        return sum(self.values) / len(self.values)


def loss_scale(target: Tensor, info: data.DataInfo) -> float:
    """VDSR's loss is half the sum of squares of a patch, and its learning rate assumes that."""
    return 1.0 if info.task == "classification" else target[0].numel() / 2
