"""Optimiser with its parameter groups, learning rate schedules, and gradient clipping."""

from __future__ import annotations

import math

import torch
from torch import nn

from slb_autotune.config.trial import LrScheduleConfig, OptimizerConfig
from slb_autotune.quant.slb import SLBLayer

# The shape of the one-cycle policy (Smith and Topin, 2018) with the usual figures.
_RISE, _START_DIVISOR, _END_DIVISOR = 0.3, 25.0, 1e4


def make_optimizer(network: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """SGD or Adam; A has a parameter group of its own, which weight decay may spare."""
    logits = [module.logits for module in network.modules() if isinstance(module, SLBLayer)]
    known = set(map(id, logits))
    others = [p for p in network.parameters() if p.requires_grad and id(p) not in known]
    decay = config.weight_decay
    groups = [
        {"params": others, "weight_decay": decay},
        {"params": logits, "weight_decay": decay if config.decay_logits else 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    fused = all(p.device.type in ("cpu", "cuda") for p in network.parameters())
    if config.name == "adam":
        return torch.optim.Adam(groups, lr=config.lr, fused=fused)
    return torch.optim.SGD(
        groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=fused
    )


def learning_rate(config: LrScheduleConfig, peak: float, step: int, total_steps: int) -> float:
    """The learning rate of step `step` (0, ..., total_steps - 1)."""
    t = step / max(1, total_steps - 1) if config.name == "one_cycle" else step / total_steps
    if t < config.warmup:
        return peak * (step + 1) / (config.warmup * total_steps + 1)
    if config.name == "milestones":
        # A milestone is a share of training; rounding keeps 0.7 x 500 epochs at epoch 350.
        passed = sum(step >= round(share * total_steps) for share in config.milestones)
        return peak * config.gamma**passed
    if config.name == "cosine":
        done = (t - config.warmup) / (1 - config.warmup)
        return peak * (1 + math.cos(math.pi * done)) / 2
    if config.name == "one_cycle":
        if t < _RISE:
            return _cosine_between(peak / _START_DIVISOR, peak, t / _RISE)
        end = peak / _START_DIVISOR / _END_DIVISOR
        return _cosine_between(peak, end, (t - _RISE) / (1 - _RISE))
    return peak


def _cosine_between(start: float, end: float, t: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * t)) / 2


def clip_gradients(network: nn.Module, config: OptimizerConfig, lr: float) -> None:
    """Clip by norm, by value, or as VDSR does: each value to [-limit / lr, limit / lr]."""
    parameters = list(network.parameters())
    if config.clip == "norm":
        nn.utils.clip_grad_norm_(parameters, config.clip_limit)
    elif config.clip == "value":
        nn.utils.clip_grad_value_(parameters, config.clip_limit)
    elif config.clip == "vdsr":
        nn.utils.clip_grad_value_(parameters, config.clip_limit / lr)
