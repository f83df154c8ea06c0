"""Confirmed values: what networks that were trained anew reach on the test set."""

from __future__ import annotations

import math

import pandas as pd

from slb_autotune.analysis.result import StudyResult
from slb_autotune.config.metrics import COST
from slb_autotune.config.trial import TrialConfig
from slb_autotune.search.records import FINISHED


def confirmed_table(search: StudyResult, confirmed: StudyResult) -> pd.DataFrame:
    """One row per member of the front: search value, confirmed mean and spread, drop, size.

    The value of the search is the same metric on the validation part, whatever was searched for.
    """
    metric = confirmed.objectives.metrics[0]
    searched = metric.replace("test_", "val_")
    finished = asked_trials(confirmed)
    configs = [_but_seed(confirmed.config_of(trial)) for trial in finished["trial"]]
    rows = []
    for _, member in search.front.iterrows():
        wanted = _but_seed(search.config_of(member["trial"]))
        values = finished.loc[[config == wanted for config in configs], metric]
        mean = float(values.mean()) if len(values) else math.nan
        rows.append(
            {
                "trial": member["trial"],
                searched: member[searched],
                metric: mean,
                "spread": values.std(ddof=1),
                "seeds": len(values),
                "drop": member[searched] - mean,
                COST: member[COST],
            }
        )
    return pd.DataFrame(rows)


def score_table(confirmed: StudyResult) -> pd.DataFrame:
    """One row per configuration: mean and spread of its test value over seeds, and its size."""
    metric = confirmed.objectives.metrics[0]
    finished = asked_trials(confirmed)
    keys = [confirmed.config_of(t).updated({"seed": 0}).digest for t in finished["trial"]]
    rows = []
    for _, same in finished.groupby(keys, sort=False):
        first = same.iloc[0]
        rows.append(
            {
                "method": first["method"],
                "W/A": f"{first['weight_bits']}/{first['activation_bits']}",
                "T_e": first["T_e"],
                metric: same[metric].mean(),
                "spread": same[metric].std(ddof=1),
                "seeds": len(same),
                COST: first[COST],
                "epochs": first["epochs"],
            }
        )
    return pd.DataFrame(rows)


def asked_trials(confirmed: StudyResult) -> pd.DataFrame:
    """The finished trials of the configurations that were last asked for.

    A confirmation keeps what it was asked before: other methods, another number of epochs.
    """
    asked = {confirmed.base.updated(point).digest for point in confirmed.config.points}
    finished = confirmed.with_status(*FINISHED)
    return finished[finished["digest"].isin(asked)]


def _but_seed(config: TrialConfig) -> TrialConfig:
    """The configuration without what a confirmation chooses anew."""
    same = {"seed": 0, "epochs": 1, "data.val_fraction": 0.0, "data.train_images": None}
    return config.updated(same)
