"""How far a network's weights have hardened, layer by layer and in total."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from slb_autotune.quant.slb import SLBLayer, column_blocks, shifted_powers, working_dtype

FROZEN_ABOVE = 0.999  # the paper's threshold on max p


def slb_layers(network: nn.Module) -> dict[str, SLBLayer]:
    """Name -> SLB layer."""
    return {
        name: module for name, module in network.named_modules() if isinstance(module, SLBLayer)
    }


def set_temperature(network: nn.Module, T: float) -> None:
    """Set T of every SLB layer."""
    for module in network.modules():
        if isinstance(module, SLBLayer):
            module.temperature = T


def all_codes(network: nn.Module) -> dict[str, Tensor]:
    """Name -> argmax codes, to compare with a later moment."""
    return {name: layer.codes() for name, layer in slb_layers(network).items()}


@torch.no_grad()
def layer_diagnostics(
    network: nn.Module, earlier: Mapping[str, Tensor] | None = None
) -> pd.DataFrame:
    """A row a layer and, last, a row `total` over all weights.

    Columns: name, bits, weights, quantization_gap (mean |W_q - W_c|), frozen_fraction (share of
    weights with max p > 0.999), entropy (mean of -sum p ln p), flip_rate (share of weights whose
    argmax differs from `earlier`; missing without it).
    """
    rows = [
        _row(name, layer, None if earlier is None else earlier[name])
        for name, layer in slb_layers(network).items()
    ]
    weights = sum(row["weights"] for row in rows)
    total: dict[str, Any] = {"name": "total", "weights": weights}
    for column in ("bits", "quantization_gap", "frozen_fraction", "entropy", "flip_rate"):
        mass = sum(row[column] * row["weights"] for row in rows)
        total[column] = mass / weights if weights else math.nan
    columns = ["name", "bits", "weights", *list(total)[3:]]
    return pd.DataFrame([*rows, total], columns=columns)


def _row(name: str, layer: SLBLayer, earlier: Tensor | None) -> dict[str, Any]:
    flat = layer.logits.detach().reshape(layer.logits.shape[0], -1)
    values = layer.values.view(-1, 1)
    codes = layer.codes()
    W_q = layer.values[codes.reshape(-1).int()]
    gap = frozen = entropy = 0.0
    for block, part in column_blocks(flat, W_q):
        block = block.to(working_dtype(flat))
        P = shifted_powers(block, block.amax(0), layer.temperature)
        P = P.div_(P.sum(0)).double()
        gap += float((part - (P * values).sum(0)).abs().sum())
        frozen += float((P.amax(0) > FROZEN_ABOVE).sum())
        entropy += float(-torch.special.xlogy(P, P).sum())
    count = codes.numel()
    flips = float("nan") if earlier is None else float((codes != earlier).float().mean())
    return {
        "name": name,
        "bits": layer.bits,
        "weights": count,
        "quantization_gap": gap / count,
        "frozen_fraction": frozen / count,
        "entropy": entropy / count,
        "flip_rate": flips,
    }
