"""confirm: configurations trained again, with several seeds on all training data, then tested.

Search picks what looked best on validation data, so its values are too good. A confirmed value is
of networks trained anew and measured on the test set; both are kept, apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from slb_autotune.config.metrics import COST, METRICS, quality_metric
from slb_autotune.config.study import StudyConfig
from slb_autotune.config.trial import TrialConfig
from slb_autotune.errors import InputError


def confirm_front(
    study: StudyConfig, front: Sequence[TrialConfig], seeds: int, epochs: int | None
) -> StudyConfig:
    """The study that trains every member of a front with several seeds."""
    if not front:
        raise InputError(
            f"study {study.name!r} has no front to confirm", "let it finish some trials."
        )
    whole = {"data.train_images": None, **({"epochs": epochs} if epochs else {})}
    return _confirmation(study, study.base(), [config.updated(whole) for config in front], seeds)


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
    metric = quality_metric(super_resolution=base.super_resolution, test=True)
    points = [
        config.updated({"seed": seed, "data.val_fraction": 0.0}).to_mapping()
        for seed in range(seeds)  # stopped early, it has all configurations with fewer seeds
        for config in configs
    ]
    return StudyConfig.from_mapping(
        {
            "name": f"{study.name}.confirm",
            "confirms": study.name,
            "trial": base.to_mapping(),
            "points": points,
            "objectives": {name: METRICS[name].direction for name in (metric, COST)},
            "budget": {"trials": len(points)},
            "resources": study.resources.model_dump(),
            "storage": study.storage.model_dump(),
        }
    )
