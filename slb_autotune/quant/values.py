"""V, the values of a low-bit weight: by code, and nearest to a float weight under one scale."""

from __future__ import annotations

import torch
from torch import Tensor

# Scales that are tried, on at most so many weights, before the best of them is refined on all.
_SCALES = 40
_SAMPLE = 2**16
_REFINEMENTS = 20


def value_set(
    bits: int, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Tensor:
    """V: 2**bits values, uniform on [-1, 1], rounded once to `dtype`."""
    # On the CPU, since MPS has no float64.
    V = torch.linspace(-1.0, 1.0, 2**bits, dtype=torch.float64, device="cpu")
    return V.to(dtype=dtype or torch.get_default_dtype(), device=device)


def values_at(codes: Tensor, values: Tensor) -> Tensor:
    """v_k for every code k."""
    if len(values) == 2:
        return codes.to(values.dtype).mul_(2).sub_(1)
    return values[codes.int()]


def best_scale(weight: Tensor, bits: int) -> float:
    """The s that makes the squared error of s Q(weight / s) small, Q the nearest value of V.

    The best of 40 scales, then alternately q = Q(weight / s) and s = <weight, q> / <q, q>, neither
    of which can raise the error. At 1 bit that is the exact optimum, the mean of |weight|. Where
    all weights are 0, so is s.
    """
    weight = _precise(weight).flatten()
    largest = float(weight.abs().max())
    if largest == 0.0:
        return 0.0
    # Drawn, not every k-th: the positions of a kernel repeat, and k might select one of them only.
    order = torch.randperm(len(weight), generator=torch.Generator().manual_seed(0))
    sample = weight[order[:_SAMPLE]]

    def error(scale: float) -> float:
        return float((nearest_value(sample / scale, bits) * scale - sample).square().sum())

    scale = min((largest * k / _SCALES for k in range(1, _SCALES + 1)), key=error)
    for _ in range(_REFINEMENTS):
        q = nearest_value(weight / scale, bits)
        before, scale = scale, float((weight @ q) / (q @ q))
        if abs(scale - before) <= 1e-6 * before:
            break
    return scale


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Every weight as the nearest of s V, with the best scale s of the whole tensor."""
    scale = best_scale(weight, bits)
    if scale == 0.0:
        return weight.detach().clone()
    return (nearest_value(_precise(weight) / scale, bits) * scale).to(weight)


def nearest_value(scaled: Tensor, bits: int) -> Tensor:
    """The nearest value of V; a tie takes the first, as argmax does."""
    last = 2**bits - 1
    codes = ((scaled + 1) * (last / 2) - 0.5).ceil().clamp(0, last)
    return value_set(bits, scaled.dtype, scaled.device)[codes.int()]


def _precise(weight: Tensor) -> Tensor:
    """In float64 on the CPU: not every device has it."""
    return weight.detach().cpu().double()
