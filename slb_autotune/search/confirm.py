"""confirm: the front trained again, with several seeds on all training data, then tested.

Search picks what looked best on validation data, so its values flatter. A confirmed value is of
networks trained anew and measured on the test set; both are kept, apart.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from slb_autotune.config import TrialConfig
from slb_autotune.errors import InputError
from slb_autotune.search.learned import first_learned
from slb_autotune.search.ledger import Ledger
from slb_autotune.study_config import StudyConfig


def confirm_study(ledger: Ledger, seeds: int, epochs: int | None) -> StudyConfig:
    """The study that trains every member of the front with several seeds."""
    members = ledger.front()
    if not members:
        raise InputError(
            f"study {ledger.config.name!r} has no front to confirm", "let it finish some trials."
        )
    metric = "test_psnr" if ledger.base.super_resolution else "test_accuracy"
    points: list[dict[str, Any]] = []
    for member in members:
        for seed in range(seeds):
            change = {"seed": seed, "data.val_fraction": 0.0, "data.train_images": None}
            config = member.config.updated(change)
            points.append(config.updated({"epochs": epochs} if epochs else {}).to_mapping())
    return StudyConfig.from_mapping(
        {
            "name": f"{ledger.config.name}.confirm",
            "confirms": ledger.config.name,
            "trial": ledger.base.to_mapping(),
            "points": points,
            "objectives": {metric: "maximize", "size_bytes": "minimize"},
            "budget": {"trials": len(points)},
            "resources": ledger.config.resources.model_dump(),
            "storage": ledger.config.storage.model_dump(),
        }
    )


def confirmed_table(search: Ledger, confirmed: Ledger) -> pd.DataFrame:
    """A row a member of the front: search value, confirmed mean and spread, drop, size."""
    metric = confirmed.goals.metrics[0]
    objective = first_learned(search)
    assert objective is not None
    searched = search.goals.metrics[objective]
    rows = []
    for member in search.front():
        values = [
            record.metrics[metric]
            for record in confirmed.with_status("done", "reused")
            if _same_but_seed(record.config, member.config)
        ]
        mean = sum(values) / len(values) if values else math.nan
        spread = pd.Series(values).std(ddof=1) if len(values) > 1 else math.nan
        rows.append(
            {
                "trial": member.number,
                searched: member.metrics[searched],
                metric: mean,
                "spread": spread,
                "seeds": len(values),
                "drop": member.metrics[searched] - mean,
                "size_bytes": member.metrics["size_bytes"],
            }
        )
    return pd.DataFrame(rows)


def _same_but_seed(one: TrialConfig, other: TrialConfig) -> bool:
    same = {"seed": 0, "epochs": 1, "data.val_fraction": 0.0, "data.train_images": None}
    return one.updated(same) == other.updated(same)
