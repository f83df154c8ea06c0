"""Metrics of a trained network: on the validation split, and of a finished run on the test set."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slb_autotune import data
from slb_autotune.config.trial import TrialConfig
from slb_autotune.cost import estimate, profile
from slb_autotune.data.super_resolution import psnr
from slb_autotune.errors import CheckpointError
from slb_autotune.quant.diagnostics import layer_diagnostics
from slb_autotune.quant.states import network_state, set_temperature
from slb_autotune.training.device import isolated, resolve_device
from slb_autotune.training.network import autocast, formatted, is_soft, load_into, make_network
from slb_autotune.training.run_folder import RunFolder


def task_loss(
    output: Tensor, target: Tensor, info: data.DataInfo, label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy, or the mean squared error of the residual.

    Label smoothing is a part of training alone: with it, losses of trials that differ in it could
    not be compared. A super-resolution network adds its residual to the input, so the error of
    its output is that of the residual.
    """
    if info.task == "classification":
        return F.cross_entropy(output, target, label_smoothing=label_smoothing)
    return F.mse_loss(output, target)


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
        losses.append(task_loss(output, y, info) * len(y))
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
            "finish it first: `slb-autotune train` with the same configuration resumes it.",
        )
    blank = config.updated({"init.checkpoint": None})
    with isolated(config.threads, device):
        network = make_network(blank, data.info(config.data), device)
    load_into(network, state["network"])
    set_temperature(network, state["history"][-1]["temperature"], 1.0)
    return config, network.eval()


def evaluate(folder: Path | str, *, device: str = "auto") -> dict[str, float]:
    """Metrics of a finished run on the test set, which training never touches.

    They are measured in the precision that the run was validated in, where the device has it:
    fp16 needs CUDA, and elsewhere fp32 stands in for it (`evaluation_precision` says which).
    """
    target = resolve_device(device)
    config, network = load_run(folder, target)
    config = config.updated({"amp": evaluation_precision(config, target)})
    info = data.info(config.data)
    split = data.load_test(config.data)
    with isolated(config.threads, target):
        values = measure(network, split, config, info)
    cost = estimate(config, info)
    return {**prefixed("test", values), **cost.metrics(), "test_images": len(split)}


def evaluation_precision(config: TrialConfig, device: torch.device) -> str:
    """The value of `amp` in which a run is evaluated on a device."""
    return "off" if config.amp == "fp16" and device.type != "cuda" else config.amp


def describe_layers(folder: Path | str) -> pd.DataFrame:
    """One row per layer of a finished run: its cost, and how far its weights hardened."""
    config, network = load_run(folder, torch.device("cpu"))
    info = data.info(config.data)
    table = profile(network, info.input_shape)
    hardening = layer_diagnostics(network).drop(columns=["bits", "weights", "flip_rate"])
    return table.merge(hardening, on="name", how="left")
