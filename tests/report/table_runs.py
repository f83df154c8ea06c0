"""Invented runs for tests of tables: no number of this file was ever measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from slb_autotune.analysis.result import StudyResult
from slb_autotune.analysis.tables import RUN_COLUMNS, typed
from slb_autotune.report.table import Table
from tests.report.invented import invented_result

PAPER = {"schedule": "exp", "T_s": 0.01, "T_e": 10.0, "norm": "paper", "lr": 0.1}


def paper_runs(name: str, values: list[float], **changes: Any) -> list[dict[str, Any]]:
    """Invented runs of a paper table, one seed per value: 1/1 ResNet20 by the paper's recipe."""
    common = {
        "study": f"invented_{name}",
        "status": "done",
        "network": "resnet20",
        "data": "cifar10",
        "method": "slb",
        "weight_bits": "1",
        "activation_bits": "1",
        "epochs": 500,
        "train_images": 50_000,
        "batch_size": 100,
        **PAPER,
    }
    metric = changes.pop("metric", "test_accuracy")
    return [
        {**common, "trial": seed, "seed": seed, metric: value, **changes}
        for seed, value in enumerate(values)
    ]


def searched(
    trial: int, bits: tuple[int, int, int], value: float, **changes: Any
) -> dict[str, Any]:
    """An invented trial of a search over digits, with bits for three layers."""
    layers = dict(zip(("layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1"), bits, strict=True))
    size = 1000 * sum(bits)
    return {
        "study": "invented_search",
        "trial": trial,
        "status": "done",
        "source": "sampler",
        "on_front": False,
        "network": "resnet20",
        "width": 8,
        "data": "digits",
        "method": "slb",
        "weight_bits": str(bits[0]) if len(set(bits)) == 1 else "mixed",
        "activation_bits": "32",
        "bits": json.dumps(layers),
        "schedule": "exp",
        "T_s": 0.01,
        "T_e": 1000.0,
        "lr": 0.1,
        "norm": "calibrate",
        "epochs": 8,
        "batch_size": 50,
        "train_images": 1617,
        "seed": 0,
        "val_accuracy": value,
        "size_bytes": size,
        "average_weight_bits": sum(bits) / 3,
        **changes,
    }


def confirming(trial: int, seed: int, bits: tuple[int, int, int], value: float) -> dict[str, Any]:
    row = searched(trial, bits, 0.0, study="invented_search.confirm", seed=seed)
    row |= {"epochs": 20, "train_images": 1797, "test_accuracy": value}
    return {name: cell for name, cell in row.items() if name != "val_accuracy"}


SEARCH = [
    searched(0, (1, 1, 1), 90.0, source="uniform 1 bit", on_front=True),
    searched(1, (2, 2, 2), 93.0, source="uniform 2 bit"),
    searched(2, (4, 4, 4), 96.0, source="uniform 4 bit", T_e=300.0, on_front=True),
    searched(3, (1, 2, 1), 94.5, T_e=250.0, lr=0.05, on_front=True),
    searched(4, (1, 2, 2), 91.0, T_e=40.0),
    searched(5, (4, 1, 1), 20.0, status="stopped", reason="rung 0"),
    searched(6, (4, 1, 1), 99.0, status="failed", reason="not a number"),
]
CONFIRM = [
    confirming(0, 0, (1, 1, 1), 88.0),
    confirming(1, 1, (1, 1, 1), 89.0),
    confirming(2, 2, (1, 1, 1), 88.4),
    {**confirming(3, 0, (1, 2, 1), 95.25), "T_e": 250.0, "lr": 0.05},
]
IMAGENET = {"network": "resnet18", "data": "imagenet", "lr": 1e-3, "batch_size": 256}
IMAGENET |= {"epochs": 240, "train_images": 1_281_167}
VDSR = {"network": "vdsr", "data": "sr_folder", "metric": "test_psnr", "batch_size": 64}
VDSR |= {"epochs": 80, "train_images": 64_000}
FLOAT = {"method": "float", "weight_bits": "32", "activation_bits": "32"}
FLOAT |= {"schedule": "", "T_s": None, "T_e": None, "norm": ""}
LONG_ID = "0123456789abcdef0123456789abcdef"

INVENTED = [
    *paper_runs("float", [92.3, 92.0, 92.4], **FLOAT, run_id=LONG_ID),
    *paper_runs("dorefa", [79.9], method="dorefa", T_e=1000.0),
    *paper_runs("above", [87.0, 87.2]),
    *paper_runs("sin", [83.0], schedule="sin"),
    *paper_runs("below", [88.0], activation_bits="2"),
    *paper_runs("small_budget", [99.0], activation_bits="4", epochs=5),
    *paper_runs(
        "large_budget", [86.1, 86.5], activation_bits="4", epochs=100, train_images=45_000
    ),
    *paper_runs("unknown_images", [90.5], activation_bits="8", train_images=None),
    *paper_runs("short", [58.9, 59.3], activation_bits="32", epochs=5),
    *paper_runs(
        "short_hard",
        [78.06, 77.9, 78.2],
        activation_bits="32",
        epochs=5,
        T_e=1000.0,
        norm="calibrate",
    ),
    *paper_runs("two_errors", [89.0, 91.0], weight_bits="2", activation_bits="2"),
    *paper_runs("two_errors_again", [50.0], weight_bits="2", activation_bits="2", status="reused"),
    *paper_runs("narrow", [99.0], weight_bits="2", activation_bits="4", width=8),
    *paper_runs("failed", [99.0], weight_bits="2", activation_bits="4", status="failed"),
    *paper_runs("untested", [99.0], weight_bits="2", activation_bits="4", metric="val_accuracy"),
    *paper_runs("mixed", [99.0], weight_bits="mixed", activation_bits="4"),
    *paper_runs("published_width", [92.01], weight_bits="2", activation_bits="32", width=16),
    *paper_runs("imagenet", [61.2], **IMAGENET, test_accuracy_top5=83.0),
    *paper_runs("imagenet_no_sbn", [60.7], **{**IMAGENET, "norm": "off"}),
    *paper_runs("vdsr_x2", [36.9], **VDSR, activation_bits="32", params='{"data.scale": 2}'),
    *paper_runs("vdsr_x3", [33.5], **{**VDSR, **FLOAT}, params='{"data.scale": 3}'),
    *paper_runs("vdsr", [40.0], **VDSR),
    *SEARCH,
    *CONFIRM,
]


def results_of(rows: Iterable[dict[str, Any]]) -> list[StudyResult]:
    """The rows as studies, in the order of their names; NAME.confirm confirms NAME."""
    studies: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        studies.setdefault(row["study"], []).append(row)
    found = []
    for name, own in sorted(studies.items()):
        frame = typed(own, RUN_COLUMNS)
        confirms = name.removesuffix(".confirm") if name.endswith(".confirm") else None
        quality = "test_accuracy" if confirms else "val_accuracy"
        metrics = (quality, "size_bytes")
        found.append(invented_result(frame, metrics=metrics, confirms=confirms))
    return found


def rows_of(table: Table) -> list[dict[str, Any]]:
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, row, strict=True)) for row in table.rows]


def cell(table: Table, method: str, bits: str, part: str = "") -> dict[str, Any]:
    (found,) = [
        row
        for row in rows_of(table)
        if (row["method"], row["bits"], row["part"]) == (method, bits, part)
    ]
    return found
