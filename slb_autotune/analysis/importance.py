"""How much each searched parameter moved each objective (PED-ANOVA)."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import pandas as pd

from slb_autotune.analysis.result import StudyResult
from slb_autotune.config.section import SHORT_NAMES
from slb_autotune.search.records import FINISHED

if TYPE_CHECKING:
    import optuna

FEWEST_RESULTS = 8


def importances(result: StudyResult, metric: str | None) -> dict[str, float]:
    """Parameter -> share of what moved an objective; empty while there are too few results."""
    if metric is None or len(result.results) < FEWEST_RESULTS:
        return {}
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    position = result.objectives.metrics.index(metric)
    sign = result.objectives.sign(metric)  # PED-ANOVA asks what leads to low values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = get_param_importances(
                _as_study(result),
                evaluator=PedAnovaImportanceEvaluator(),
                target=lambda trial: sign * trial.values[position],
            )
        except (ValueError, RuntimeError):
            return {}
    return dict(found)


def importance_table(result: StudyResult) -> pd.DataFrame:
    """One row per objective, one column per parameter: the share that it moved."""
    rows = {metric: importances(result, metric) for metric in result.objectives.metrics}
    return pd.DataFrame.from_dict(rows, orient="index").fillna(0.0)


def _as_study(result: StudyResult) -> optuna.Study:
    """The finished trials as an Optuna study in memory."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(directions=result.objectives.directions)
    finished = result.with_status(*FINISHED)
    values = finished[list(result.objectives.metrics)].astype("float64").to_numpy().tolist()
    for cell, row in zip(finished["params"], values, strict=True):
        params: dict[str, Any] = json.loads(cell or "{}")
        distributions = {name: _distribution(result, name) for name in params}
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=distributions, values=row)
        )
    return study


def _distribution(result: StudyResult, name: str) -> optuna.distributions.BaseDistribution:
    """The distribution that a parameter was drawn from: `weight_bits/layer1.*` is one of bits."""
    from slb_autotune.search.space import distribution_of

    space = result.config.space
    field = name.partition("/")[0]
    short = next((s for s, long in SHORT_NAMES.items() if long == field and s in space), field)
    return distribution_of(space[short])
