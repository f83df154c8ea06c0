"""The tables that measurements travel in: one row per trial, and one row per epoch.

Studies, MLflow, the files under `results/runs` and the reports share this schema. The columns of
metrics are those of `config/metrics.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from slb_autotune.config.files import write_atomically
from slb_autotune.config.metrics import METRICS
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import DataError, nearest

# Column -> pandas dtype. Where a value does not exist it is missing, never 0.
IDENTITY_COLUMNS: dict[str, str] = {
    "study": "str",
    "trial": "Int64",
    "run_id": "str",  # of MLflow; empty where a run is not recorded there
    "digest": "str",  # of the configuration
    "status": "str",  # done, stopped, failed, running or reused
    "reason": "str",
    "source": "str",  # what proposed it: sampler, uniform 1 bit, paper, sensitivity, ...
    "on_front": "boolean",
}
SETTING_COLUMNS: dict[str, str] = {
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
}
# What the worker recorded of itself, and how to train the trial again.
PROVENANCE_COLUMNS: dict[str, str] = {
    "epochs_spent": "Int64",  # in every rung
    "attempt": "Int64",
    "started": "float64",  # POSIX seconds
    "ended": "float64",
    "params": "str",  # JSON: what the study searched -> its value
    "config": "str",  # JSON: fields that differ from the study's fixed part
    "version": "str",
    "torch": "str",
    "machine": "str",
    "device": "str",
    "threads": "Int64",
    "precision": "str",
    "command": "str",
}
RUN_COLUMNS: dict[str, str] = {
    **IDENTITY_COLUMNS,
    **SETTING_COLUMNS,
    **{metric.name: metric.dtype for metric in METRICS.values()},
    **PROVENANCE_COLUMNS,
}
EPOCH_COLUMNS: dict[str, str] = {
    "study": "str",
    "trial": "Int64",
    "rung": "Int64",
    "epoch": "Int64",
    "temperature": "float64",
    "lr": "float64",
    **{metric.name: metric.dtype for metric in METRICS.of_stage("epoch")},
    "seconds": "float64",
}


def typed(
    rows: Sequence[Mapping[str, Any]] | pd.DataFrame, columns: dict[str, str]
) -> pd.DataFrame:
    """Rows with exactly these columns, in this order, each of its type."""
    frame = pd.DataFrame(rows).reindex(columns=list(columns))
    texts = [name for name, dtype in columns.items() if dtype == "str"]
    frame[texts] = frame[texts].astype("str").where(frame[texts].notna(), "")
    return frame.astype(columns)


def read_runs(path: Path) -> pd.DataFrame:
    """A table of runs from a CSV file."""
    return _read(path, RUN_COLUMNS)


def read_epochs(path: Path) -> pd.DataFrame:
    """A table of epochs from a CSV file."""
    return _read(path, EPOCH_COLUMNS)


def _read(path: Path, columns: dict[str, str]) -> pd.DataFrame:
    texts = {name: str for name, dtype in columns.items() if dtype == "str"}
    try:
        # A study may be called null, and a reason may be NA: only an empty cell has no value.
        frame = pd.read_csv(path, dtype=texts, keep_default_na=False, na_values=[""])
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
    filled = [
        name
        for name in frame.columns
        if name in ("study", "trial") or (frame[name].notna() & (frame[name] != "")).any()
    ]
    text = StringIO()
    frame[filled].to_csv(text, index=False, lineterminator="\n")
    write_atomically(path, text.getvalue().encode())


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
        "weight_bits": bits_label(config.weight_bits) if quantised else "32",
        "activation_bits": bits_label(config.activation_bits) if quantised else "32",
        "schedule": temperature.schedule if annealed else "",
        "T_s": temperature.T_s if annealed else None,
        "T_e": temperature.T_e if annealed else None,
        "lr": config.optimizer.lr,
        "norm": config.norm.mode if annealed else "",
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "seed": config.seed,
    }


def bits_label(bits: int | Mapping[str, int]) -> str:
    """`1`, or `mixed` where layers differ."""
    if isinstance(bits, int):
        return str(bits)
    found = set(bits.values())
    return str(found.pop()) if len(found) == 1 else "mixed"


def layer_bits(cell: str) -> dict[str, int]:
    """The column `bits` as a mapping; empty where there is none."""
    return dict(json.loads(cell)) if cell else {}


def numbers(frame: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """A column as floats, NaN for whatever is missing or not finite."""
    cells = pd.to_numeric(frame[column], errors="coerce")
    values = cells.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)
