"""A study as tables: a row a trial, and a row an epoch (the schema is in run_table.py)."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from typing import Any

import pandas as pd

from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS, config_columns, typed
from slb_autotune.config.trial import TrialConfig
from slb_autotune.quant.convert import resolve_bits
from slb_autotune.search.early_stopping import phases
from slb_autotune.search.ledger import Ledger, Record
from slb_autotune.search.worker import phase_folder
from slb_autotune.training.device import resolve_device
from slb_autotune.training.run_folder import staged_epochs
from slb_autotune.version import VERSION


def run_frame(ledger: Ledger) -> pd.DataFrame:
    """A row a trial."""
    front = {record.number for record in ledger.front()}
    rows = [_run_row(ledger, record, front) for record in ledger.records.values()]
    return typed(rows, RUN_COLUMNS)


def epoch_frame(ledger: Ledger) -> pd.DataFrame:
    """A row an epoch, of every rung; read from the trials' folders."""
    rows = [row for record in ledger.records.values() for row in _epoch_rows(ledger, record)]
    return typed(rows, EPOCH_COLUMNS)


def weight_bits_of(ledger: Ledger, config: TrialConfig) -> dict[str, int]:
    """Layer -> bits of its weights; empty for a float network."""
    if not config.quantises:
        return {}
    return resolve_bits("weight_bits", config.weight_bits, ledger.costs.layers(config))


def stages_of(ledger: Ledger, record: Record) -> tuple[tuple[str, int], ...]:
    """What a trial goes through: (folder, last epoch) of each phase."""
    epochs, folder = record.config.epochs, ledger.trial_folder(record.number)
    return tuple(
        (phase_folder(folder, phase, epochs).name, phase.until)
        for phase in phases(ledger.config.early_stopping, epochs)
    )


def _run_row(ledger: Ledger, record: Record, front: set[int]) -> dict[str, Any]:
    config = record.config
    metrics = record.metrics or ledger.costs.cost(config).metrics()
    return {
        "study": ledger.config.name,
        "trial": record.number,
        "status": record.status,
        "reason": record.reason,
        "source": record.source,
        "on_front": record.number in front,
        **config_columns(config),
        "bits": json.dumps(weight_bits_of(ledger, config)) if config.quantises else "",
        **{name: value for name, value in metrics.items() if name in RUN_COLUMNS},
        "epochs": config.epochs,
        "lr": config.optimizer.lr,
        "epochs_spent": record.epochs,
        "params": json.dumps(record.params, sort_keys=True),
        "version": VERSION,
        "machine": f"{platform.system()} {platform.machine()}",
        "device": str(resolve_device(config.device)),
        "command": f"slb-autotune train {ledger.config.name}:{record.number}",
    }


def _epoch_rows(ledger: Ledger, record: Record) -> Iterator[dict[str, Any]]:
    marks = {"study": ledger.config.name, "trial": record.number}
    for row in staged_epochs(ledger.trial_folder(record.number), stages_of(ledger, record)):
        yield {**row, **marks}
