"""The device of a trial, free memory, and the threads and random state of the process."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import ConfigError

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def resolve_device(name: str) -> torch.device:
    """The device called `name`; `auto` takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"there is no device {name!r} here", "use device: auto or cpu."
        ) from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"there is no device {name!r} here", "use device: auto or cpu.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("there is no MPS device here", "use device: auto or cpu.")
    return device


def check_precision(config: TrialConfig, device: torch.device) -> None:
    """Refuse mixed precision that the device does not support."""
    if config.amp == "fp16" and device.type != "cuda":
        raise ConfigError(f"amp: fp16 needs CUDA; this is {device.type}", "use amp: off.")


def free_memory(device: torch.device) -> int | None:
    """Bytes free on the device, within the container's limit; None where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [value for value in (_host_memory(), _container_memory()) if value is not None]
    return min(found, default=None)


def _host_memory() -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return None


def _container_memory() -> int | None:
    """What the container's limit leaves; the page cache counts as free, since it gives way."""
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        lines = (CGROUP / "memory.stat").read_text().splitlines()
        cache = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
        return limit - used + cache
    except (OSError, StopIteration, ValueError):
        return None


def keep_freed_memory() -> None:
    """Make the allocator keep freed memory, in a process that only trains on the CPU.

    Every step frees all activations and allocates the same again; glibc returns the large ones to
    the system in between, and the page faults of the next allocation take up to a tenth of a
    step. Without glibc this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(M_MMAP_MAX, 0)


@contextmanager
def isolated(threads: int, device: torch.device) -> Iterator[None]:
    """Run with `threads` threads; restore the process's threads and random state afterwards."""
    before = torch.get_num_threads()
    index = [device.index or 0] if device.type == "cuda" else []
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=index):
            yield
    finally:
        torch.set_num_threads(before)
