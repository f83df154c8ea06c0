"""The harness's own cost: a study that trains nothing is recorded like any other."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from slb_autotune.bench.harness import EPOCHS, idle_study
from slb_autotune.tracking import load_runs


@pytest.mark.slow
def test_a_study_that_trains_nothing_is_recorded_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (row,) = idle_study(trials=3, concurrent=2).to_dict("records")
    assert row["trials"] == 3
    assert row["s_per_trial"] == pytest.approx(row["wall_s"] / 3)
    client = MlflowClient(uri)
    for run in load_runs("idle", uri=uri)["run_id"]:
        logged = client.get_metric_history(run, "metric_3")
        assert [metric.step for metric in logged] == list(range(1, EPOCHS + 1))
