"""confirm: the front trained again, with several seeds on all training data, then tested.

Search picks what looked best on validation data, so its values flatter. A confirmed value is of
networks trained anew and measured on the test set; both are kept, apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from slb_autotune.analysis.lessons import first_learned
from slb_autotune.analysis.tables import config_columns
from slb_autotune.config.study import StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import InputError
from slb_autotune.search.ledger import Ledger, Record


def confirm_study(ledger: Ledger, seeds: int, epochs: int | None) -> StudyConfig:
    """The study that trains every member of the front with several seeds."""
    members = ledger.front()
    if not members:
        raise InputError(
            f"study {ledger.config.name!r} has no front to confirm", "let it finish some trials."
        )
    whole = {"data.train_images": None, **({"epochs": epochs} if epochs else {})}
    configs = [member.config.updated(whole) for member in members]
    return _confirmation(ledger.config, ledger.base, configs, seeds)


def confirm_points(study: StudyConfig, seeds: int, epochs: int | None) -> StudyConfig:
    """The study that trains every listed point with several seeds: nothing is searched for."""
    if not study.points:
        raise InputError(
            f"study {study.name!r} has no list of points to confirm",
            "search it first, then confirm it by its name.",
        )
    base = study.base().updated({"epochs": epochs} if epochs else {})
    return _confirmation(study, base, [base.updated(point) for point in study.points], seeds)


def _confirmation(
    study: StudyConfig, base: TrialConfig, configs: Sequence[TrialConfig], seeds: int
) -> StudyConfig:
    metric = "test_psnr" if base.super_resolution else "test_accuracy"
    points = [
        config.updated({"seed": seed, "data.val_fraction": 0.0}).to_mapping()
        for seed in range(seeds)  # one that is stopped has them all, with fewer seeds
        for config in configs
    ]
    return StudyConfig.from_mapping(
        {
            "name": f"{study.name}.confirm",
            "confirms": study.name,
            "trial": base.to_mapping(),
            "points": points,
            "objectives": {metric: "maximize", "size_bytes": "minimize"},
            "budget": {"trials": len(points)},
            "resources": study.resources.model_dump(),
            "storage": study.storage.model_dump(),
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


def score_table(confirmed: Ledger) -> pd.DataFrame:
    """A row a configuration: mean and spread of its test value over seeds, and its size."""
    metric = confirmed.goals.metrics[0]
    groups: dict[str, list[Record]] = {}
    for record in confirmed.with_status("done", "reused"):
        groups.setdefault(record.config.updated({"seed": 0}).digest, []).append(record)
    rows = []
    for records in groups.values():
        values = pd.Series([record.metrics[metric] for record in records])
        config = config_columns(records[0].config)
        rows.append(
            {
                "method": config["method"],
                "W/A": f"{config['weight_bits']}/{config['activation_bits']}",
                "T_e": math.nan if config["T_e"] is None else config["T_e"],
                metric: values.mean(),
                "spread": values.std(ddof=1),
                "seeds": len(values),
                "size_bytes": records[0].metrics["size_bytes"],
                "epochs": config["epochs"],
            }
        )
    return pd.DataFrame(rows)


def _same_but_seed(one: TrialConfig, other: TrialConfig) -> bool:
    same = {"seed": 0, "epochs": 1, "data.val_fraction": 0.0, "data.train_images": None}
    return one.updated(same) == other.updated(same)
