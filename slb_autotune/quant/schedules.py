"""Temperature over training: T = 1/tau rises from T_s to T_e (paper, section 4.1).

A schedule is a function of t = i/I in [0, 1]. Flat parts at the ends squeeze the rise into the
middle of training, as the authors' own runs did.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

from slb_autotune.config.registry import SCHEDULES
from slb_autotune.errors import ConfigError

Schedule = Callable[[float, float, float], float]


def linear(t: float, T_s: float, T_e: float) -> float:
    """T_s + t (T_e - T_s)."""
    return T_s + t * (T_e - T_s)


def sin(t: float, T_s: float, T_e: float) -> float:
    """T_s + sin(t pi / 2) (T_e - T_s)."""
    return T_s + math.sin(t * math.pi / 2) * (T_e - T_s)


def exp(t: float, T_s: float, T_e: float) -> float:
    """T_s (T_e / T_s)**t."""
    return T_s * (T_e / T_s) ** t


def cosine(t: float, T_s: float, T_e: float) -> float:
    """T_s + (1 - cos(t pi)) / 2 (T_e - T_s): slow at both ends."""
    return T_s + (1 - math.cos(t * math.pi)) / 2 * (T_e - T_s)


def temperature(
    schedule: str,
    step: int,
    total_steps: int,
    T_s: float,
    T_e: float,
    *,
    flat_until: float = 0.0,
    flat_from: float = 1.0,
) -> float:
    """T at iteration `step` of `total_steps`, counted as in Algorithm 1: i = 1, ..., I.

    T is T_s at i = 0 and T_e at i = I. Before the share `flat_until` of training it stays T_s,
    after `flat_from` it stays T_e.
    """
    if total_steps < 1 or not 0 <= step <= total_steps:
        raise ConfigError(f"step must lie in 0..total_steps; got {step} of {total_steps}")
    if T_s <= 0 or T_e <= 0:
        raise ConfigError(f"T_s and T_e must be above 0; got {T_s:g} and {T_e:g}")
    if not 0 <= flat_until < flat_from <= 1:
        raise ConfigError(
            f"flat parts need 0 <= flat_until < flat_from <= 1; got {flat_until:g}, {flat_from:g}"
        )
    curve = cast(Schedule, SCHEDULES[schedule].load())
    t = (step / total_steps - flat_until) / (flat_from - flat_until)
    return curve(min(max(t, 0.0), 1.0), T_s, T_e)
