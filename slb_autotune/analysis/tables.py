"""The tables that measurements travel in: a row a trial, and a row an epoch.

Studies, MLflow, the files under `results/runs` and the reports all speak this schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import DataError, nearest

# Column -> pandas dtype. Where a value does not exist it is missing, never 0.
RUN_COLUMNS: dict[str, str] = {
    "study": "str",
    "trial": "Int64",
    "run_id": "str",  # of MLflow; empty where a run is not recorded there
    "status": "str",  # done, stopped, failed, running or reused
    "reason": "str",
    "source": "str",  # what proposed it: sampler, uniform 1 bit, paper, sensitivity, ...
    "on_front": "boolean",
    "network": "str",
    "width": "Int64",
    "data": "str",
    "scale": "Int64",  # super-resolution only
    "method": "str",
    "weight_bits": "str",  # "1", or "mixed"
    "activation_bits": "str",
    "bits": "str",  # JSON: layer -> weight bits
    "schedule": "str",
    "T_s": "float64",
    "T_e": "float64",
    "lr": "float64",
    "norm": "str",
    "epochs": "Int64",
    "batch_size": "Int64",
    "train_images": "Int64",
    "seed": "Int64",
    "val_accuracy": "float64",
    "val_accuracy_top5": "float64",
    "val_psnr": "float64",
    "val_loss": "float64",
    "test_accuracy": "float64",
    "test_accuracy_top5": "float64",
    "test_psnr": "float64",
    "size_bytes": "Int64",
    "bitops": "float64",
    "average_weight_bits": "float64",
    "quantization_gap": "float64",
    "frozen_fraction": "float64",
    "flip_rate": "float64",
    "seconds": "float64",
    "epochs_spent": "Int64",  # in every rung
    "params": "str",  # JSON: what the study searched -> its value
    "version": "str",
    "machine": "str",
    "device": "str",
    "command": "str",  # gives the row again
}

EPOCH_COLUMNS: dict[str, str] = {
    "study": "str",
    "trial": "Int64",
    "rung": "Int64",
    "epoch": "Int64",
    "temperature": "float64",
    "lr": "float64",
    "train_loss": "float64",
    "val_loss": "float64",
    "val_accuracy": "float64",
    "val_accuracy_continuous": "float64",
    "val_psnr": "float64",
    "quantization_gap": "float64",
    "frozen_fraction": "float64",
    "flip_rate": "float64",
    "seconds": "float64",
}


def typed(
    rows: Sequence[Mapping[str, Any]] | pd.DataFrame, columns: dict[str, str]
) -> pd.DataFrame:
    """Rows with exactly these columns, in this order, each of its type."""
    frame = pd.DataFrame(rows).reindex(columns=list(columns))
    words = [name for name, dtype in columns.items() if dtype == "str"]
    frame[words] = frame[words].astype("str").where(frame[words].notna(), "")
    return frame.astype(columns)


def read_runs(path: Path) -> pd.DataFrame:
    """A table of runs from a CSV file."""
    return _read(path, RUN_COLUMNS)


def read_epochs(path: Path) -> pd.DataFrame:
    """A table of epochs from a CSV file."""
    return _read(path, EPOCH_COLUMNS)


def _read(path: Path, columns: dict[str, str]) -> pd.DataFrame:
    words = {name: str for name, dtype in columns.items() if dtype == "str"}
    try:
        frame = pd.read_csv(path, dtype=words)
        unknown = [str(name) for name in frame.columns if name not in columns]
        if not unknown:
            return typed(frame, columns)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read as a table: {reason}", "check it.") from error
    raise DataError(
        f"{path} has an unknown column {unknown[0]!r}", nearest(unknown[0], list(columns))
    )


def write(frame: pd.DataFrame, path: Path) -> None:
    """The same table always gives the same bytes; columns that nothing fills are left out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    filled = [name for name in frame.columns if (frame[name].notna() & (frame[name] != "")).any()]
    frame[filled].to_csv(path, index=False, lineterminator="\n")


def config_columns(config: TrialConfig) -> dict[str, Any]:
    """The columns of a run that its configuration alone decides, the bits of its layers aside."""
    quantised, annealed = config.method != "float", config.uses_temperature
    temperature = config.temperature
    return {
        "network": config.network.name,
        "width": config.network.width,
        "data": config.data.name,
        "scale": config.data.scale if config.super_resolution else None,
        "method": config.method,
        "weight_bits": bits_word(config.weight_bits) if quantised else "32",
        "activation_bits": bits_word(config.activation_bits) if quantised else "32",
        "schedule": temperature.schedule if annealed else "",
        "T_s": temperature.T_s if annealed else None,
        "T_e": temperature.T_e if annealed else None,
        "lr": config.optimizer.lr,
        "norm": config.norm.mode if annealed else "",
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "seed": config.seed,
    }


def bits_word(bits: int | Mapping[str, int]) -> str:
    """`1`, or `mixed` where layers differ."""
    if isinstance(bits, int):
        return str(bits)
    found = set(bits.values())
    return str(found.pop()) if len(found) == 1 else "mixed"


def layer_bits(cell: str) -> dict[str, int]:
    """The column `bits` as a mapping; empty where there is none."""
    return dict(json.loads(cell)) if cell else {}
