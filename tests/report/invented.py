"""Invented studies for tests of the report: their numbers were never measured."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from slb_autotune.analysis.result import StudyResult
from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS, numbers, typed
from slb_autotune.config.metrics import METRICS, Objectives
from slb_autotune.config.study import StudyConfig
from slb_autotune.pareto import front, hypervolume_share
from slb_autotune.report.page import PageContent

LAYERS = [f"layer{s}.{b}.conv{c}" for s in (1, 2, 3) for b in (0, 1, 2) for c in (1, 2)]
WEIGHTS = dict(zip(LAYERS, [1] * 6 + [4] * 6 + [16] * 6, strict=True))
SUPER_RESOLUTION = {"network.name": "vdsr", "data.name": "photos"}
RUNGS = ((0, 0.25), (1, 0.5), (2, 1.0))
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 320 200"><style>*{fill:#0072b2}</style>'
    '<rect x="20" y="60" width="60" height="120"/><rect x="130" y="20" width="60" height="160"/>'
    '<rect x="240" y="100" width="60" height="80"/></svg>'
)
TABLE = (
    '<table class="slb-table"><thead><tr><th>method</th><th>published</th><th>measured</th>'
    "<th>verdict</th></tr></thead><tbody><tr><td>SLB 1/32</td><td>90.6</td><td>78.06 ± 0.12</td>"
    "<td>reduced budget</td></tr></tbody></table>"
)


def invented_result(
    runs: pd.DataFrame,
    epochs: pd.DataFrame | None = None,
    metrics: tuple[str, ...] = ("val_accuracy", "size_bytes"),
    **config: Any,
) -> StudyResult:
    """The result of a study of these trials: its front, its reference point, its hypervolume.

    The reference point is 0 for what is maximised and twice the largest value for what is
    minimised. Changes of the study file by top-level key.
    """
    values = {
        "name": str(runs["study"].iloc[0]) if len(runs) else "invented",
        "trial": SUPER_RESOLUTION if "val_psnr" in metrics else {},
        "space": {"T_e": {"log": [1, 10000]}, "weight_bits": {"choices": [1, 2], "per": "layer"}},
        "objectives": {name: METRICS[name].direction for name in metrics},
    }
    study = StudyConfig.from_mapping({**values, **config})
    objectives = study.goals()
    trials = runs if runs["on_front"].any() else with_front(runs, objectives)
    reference = tuple(
        0.0 if direction == "maximize" else 2.0 * float(np.nanmax([*numbers(runs, name), 1.0]))
        for name, direction in objectives.items()
    )
    bare = StudyResult(study, trials, typed([], EPOCH_COLUMNS) if epochs is None else epochs)
    points = np.column_stack([numbers(bare.results, name) for name in objectives.metrics])
    share = hypervolume_share(points, reference, objectives)
    return replace(bare, reference=reference, hypervolume=share)


def with_front(runs: pd.DataFrame, objectives: Objectives) -> pd.DataFrame:
    """The runs with the members of their front marked, as a study marks them."""
    values = np.column_stack([numbers(runs, name) for name in objectives.metrics])
    values[(runs["status"] != "done").to_numpy(dtype=bool)] = np.nan
    return runs.assign(on_front=pd.array(front(values, objectives.directions), dtype="boolean"))


def invented_study(
    trials: int = 60, epochs: int = 12, metric: str = "val_accuracy", seed: int = 0
) -> StudyResult:
    """A study with uniform allocations, the paper's schedule, stopped and failed trials."""
    rng = random.Random(seed)
    runs = [_run(trial, epochs, metric, rng) for trial in range(trials)]
    curves = [row for run in runs for row in _curves(run, epochs, metric)]
    tables = typed(runs, RUN_COLUMNS), typed(curves, EPOCH_COLUMNS)
    return invented_result(*tables, metrics=(metric, "size_bytes"))


def _run(trial: int, epochs: int, metric: str, rng: random.Random) -> dict[str, Any]:
    stages = [rng.choice((1, 2, 4, 8)) for _ in range(3)]
    source = "sampler"
    if trial < 3:
        stages, source = [2**trial] * 3, f"uniform {2**trial} bit"
    elif trial == 3:
        stages, source = [1, 1, 1], "paper"
    bits = {name: stages[int(name[5]) - 1] for name in LAYERS}
    size = 4000 + sum(WEIGHTS[name] * b * 40 for name, b in bits.items())
    T_e = 1000.0 if trial == 3 else round(10 ** rng.uniform(0, 4), 2)
    lr = round(10 ** rng.uniform(-3, -0.5), 5)
    miss = abs(math.log10(T_e) - 2.4) + 0.8 * abs(math.log10(lr) + 1.5)
    quality = 93 - 14 * 0.6 ** (size / 4000) * 3 - 5 * miss**1.5 + rng.gauss(0, 0.8)
    quality = max(quality, 10.0) if metric == "val_accuracy" else 24 + quality / 10
    status = "failed" if trial % 17 == 16 else "stopped" if trial % 5 == 4 else "done"
    measured = status != "failed"
    return {
        "study": "invented",
        "trial": trial,
        "status": status,
        "reason": "" if measured else "the loss was nan in epoch 3; the last one was 7.41",
        "source": source,
        "on_front": False,
        "network": "resnet20" if metric == "val_accuracy" else "vdsr",
        "width": 8,
        "data": "cifar10" if metric == "val_accuracy" else "photos",
        "method": "slb",
        "weight_bits": str(stages[0]) if len(set(stages)) == 1 else "mixed",
        "activation_bits": "32",
        "bits": json.dumps(bits),
        "schedule": "sin" if trial == 3 else rng.choice(("linear", "sin", "exp")),
        "T_s": 0.01,
        "T_e": T_e,
        "lr": lr,
        "epochs": epochs,
        "batch_size": 100,
        "seed": 0,
        metric: quality if measured else None,
        "size_bytes": size,
        "bitops": size * 3.1e4,
        "average_weight_bits": sum(stages) / 3,
        "quantization_gap": 0.02 + 0.4 / (1 + T_e / 30) if measured else None,
        "seconds": 30 + 3 * trial % 40,
        "params": json.dumps(
            {
                "temperature.T_e": T_e,
                **{f"weight_bits/layer{s + 1}.*": b for s, b in enumerate(stages)},
            }
        ),
        "version": "0.0.0",
        "command": f"slb-autotune train invented:{trial}",
    }


def _curves(run: dict[str, Any], epochs: int, metric: str) -> list[dict[str, Any]]:
    if run["status"] == "failed":
        return []
    rows = []
    for rung, share in RUNGS[: 2 if run["status"] == "stopped" else 3]:
        length = max(int(epochs * share), 1)
        for epoch in range(1, length + 1):
            part = epoch / length
            rows.append(
                {
                    "study": run["study"],
                    "trial": run["trial"],
                    "rung": rung,
                    "epoch": epoch,
                    "temperature": 0.01 * (run["T_e"] / 0.01) ** part,
                    "train_loss": 2.3 * math.exp(-3 * part),
                    metric: run[metric] * (1 - 0.7 * math.exp(-4 * part * share)),
                    "val_accuracy_continuous": (
                        run[metric] * (1 - 0.5 * math.exp(-5 * part))
                        if metric == "val_accuracy"
                        else None
                    ),
                    "quantization_gap": 0.9 * (1 - part) + run["quantization_gap"] * part,
                }
            )
    return rows


def invented_page(result: StudyResult, **changes: Any) -> PageContent:
    """A page with something in every section."""
    values: dict[str, Any] = {
        "result": result,
        "question": "Which end temperature and which bits give the best network of at most 20 kB?",
        "answer": [
            "A mixed allocation of 9.4 kB reaches 91.2 %, 1.9 points above uniform 2 bit.",
            "End temperatures between 100 and 400 were best.",
            "The paper's schedule was 2.3 points below the best one found.",
        ],
        "tables": [("ResNet20 on CIFAR-10", TABLE)],
        "figures": [("Three bars, which stand for a figure.", SVG)],
        "reproduce": ["slb-autotune search search_spaces/invented.yaml", "slb-autotune report"],
        "notes": ["12 of 500 epochs, 100 % of the images.", "Hypervolume 0.893."],
    }
    return PageContent(**{**values, **changes})
