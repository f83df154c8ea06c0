"""How far a network's weights have hardened, layer by layer and in total."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from slb_autotune.quant.expectation import working_dtype
from slb_autotune.quant.layers import LowBitLayer, low_bit_layers
from slb_autotune.quant.slb import SLBLayer

FROZEN_ABOVE = 0.999  # the paper's threshold on max p
BINS = 41  # of a histogram: odd, so that zero has a bin of its own

_BLOCK = 2**22  # entries of A whose probabilities are held at once


def all_codes(network: nn.Module) -> dict[str, Tensor]:
    """Name -> codes, to compare with those of a later epoch."""
    return {name: layer.codes() for name, layer in low_bit_layers(network).items()}


@torch.no_grad()
def layer_diagnostics(
    network: nn.Module, earlier: Mapping[str, Tensor] | None = None
) -> pd.DataFrame:
    """One row per layer and, last, a row `total` over all weights.

    Columns: name, bits, weights, quantization_gap (mean |W_q - W_c|), frozen_fraction (share of
    weights with max p > 0.999), entropy (mean of -sum p ln p), flip_rate (share of weights whose
    code differs from `earlier`; missing without it). A rival has no probabilities: its
    frozen_fraction and entropy are missing.
    """
    rows = [
        _row(name, layer, None if earlier is None else earlier[name])
        for name, layer in low_bit_layers(network).items()
    ]
    weights = sum(row["weights"] for row in rows)
    total: dict[str, Any] = {"name": "total", "weights": weights}
    for column in ("bits", "quantization_gap", "frozen_fraction", "entropy", "flip_rate"):
        mass = sum(row[column] * row["weights"] for row in rows)
        total[column] = mass / weights if weights else math.nan
    columns = ["name", "bits", "weights", *list(total)[3:]]
    return pd.DataFrame([*rows, total], columns=columns)


@torch.no_grad()
def weight_histograms(network: nn.Module, epoch: int) -> dict[str, Tensor]:
    """Name -> a row of float32: `epoch`, the reach, and counts of BINS bins from -reach to reach.

    W_c is counted, with a reach of 1; for a rival without W_c, the float weight that it rounds,
    with its largest magnitude as the reach. Weights that are NaN or infinite are not counted.
    """
    return {name: _histogram(layer, epoch) for name, layer in low_bit_layers(network).items()}


def _histogram(layer: LowBitLayer, epoch: int) -> Tensor:
    weight = layer.continuous_weight() if layer.soft else layer.trained
    # On the CPU, since a GPU refuses to count where its results must be the same every time.
    weight = weight.detach().cpu().double()
    if isinstance(layer, SLBLayer):
        weight, reach = weight.clamp(-1, 1), 1.0  # rounding may put it just outside
    else:
        reach = float(weight.nan_to_num(0, 0, 0).abs().max()) or 1.0
    counts = torch.histc(weight, BINS, -reach, reach).float()
    return torch.cat([torch.tensor([float(epoch), reach]), counts]).unsqueeze(0)


def _row(name: str, layer: LowBitLayer, earlier: Tensor | None) -> dict[str, Any]:
    codes = layer.codes()
    return {
        "name": name,
        "bits": layer.bits,
        "weights": codes.numel(),
        **(_hardening(layer, codes) if isinstance(layer, SLBLayer) else _rounding(layer)),
        "flip_rate": math.nan if earlier is None else float((codes != earlier).float().mean()),
    }


def _rounding(layer: LowBitLayer) -> dict[str, float]:
    gap = (layer.quantized_weight() - layer.continuous_weight()).abs().mean()
    return {"quantization_gap": float(gap), "frozen_fraction": math.nan, "entropy": math.nan}


def _hardening(layer: SLBLayer, codes: Tensor) -> dict[str, float]:
    flat = layer.logits.detach().flatten(1)
    W_q = layer.decode(codes, {}).flatten()
    T = torch.tensor(layer.temperature, dtype=working_dtype(flat), device=flat.device)
    # MPS has no float64.
    dtype = torch.float32 if flat.device.type == "mps" else torch.float64
    values = layer.values.to(dtype).unsqueeze(1)
    gap = frozen = entropy = 0.0
    width = max(1, _BLOCK // flat.shape[0])
    for block, part in zip(flat.split(width, 1), W_q.split(width), strict=True):
        P = torch.softmax(block.to(T.dtype) * T, 0).to(dtype)
        gap += float((part - (P * values).sum(0)).abs().sum())
        frozen += float((P.amax(0) > FROZEN_ABOVE).sum())
        entropy += float(torch.special.entr(P).sum())
    count = codes.numel()
    return {
        "quantization_gap": gap / count,
        "frozen_fraction": frozen / count,
        "entropy": entropy / count,
    }
