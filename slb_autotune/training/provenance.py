"""What a trial ran on, recorded by the process that trains it."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch

from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import ConfigError
from slb_autotune.training.device import resolve_device
from slb_autotune.version import VERSION


def provenance(config: TrialConfig) -> dict[str, Any]:
    """Machine, device, threads, precision and version of a run that this process trains."""
    return {
        "version": VERSION,
        "torch": str(torch.__version__),
        "machine": machine(),
        "device": device_name(config.device),
        "threads": config.threads,
        "precision": "fp32" if config.amp == "off" else config.amp,
    }


@cache
def machine() -> str:
    """The kind of machine: system, architecture and processor."""
    return ", ".join(filter(None, (f"{platform.system()} {platform.machine()}", _processor())))


def _processor() -> str:
    """The processor's name; numbers may differ between kinds of processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")


def device_name(name: str) -> str:
    """`cpu`, `mps`, or `cuda:0 (NVIDIA A100)`; the name itself where there is no such device."""
    try:
        device = resolve_device(name)
    except ConfigError:
        return name
    if device.type != "cuda":
        return device.type
    return f"{device} ({torch.cuda.get_device_name(device)})"
