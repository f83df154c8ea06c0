"""A real study, with Ray's workers, is in MLflow as it is in its folder."""

from __future__ import annotations

import pandas as pd
import pytest

from slb_autotune.search.driver import run_study
from slb_autotune.tracking import MlflowRecorder, load_epochs, load_runs
from slb_autotune.training.provenance import machine
from tests.builders import tiny_study
from tests.tracking.helpers import artifacts, local, uri_of


@pytest.mark.slow
def test_a_study_is_recorded_while_it_runs(runs_folder):
    config = tiny_study(
        trial={**tiny_study().trial, "epochs": 2},
        budget={"trials": 3},
        early_stopping={"rungs": [0.5], "spared": 1.0},
        resources={"concurrent": 1},
        storage={"folder": str(runs_folder)},
    )
    recorder = MlflowRecorder(config)
    # The folder has a file of that study from the fixture.
    outcome = run_study(config, [recorder], resume=True)
    assert (outcome.status, recorder.waiting) == ("done", 0)
    uri = uri_of(runs_folder)
    ours, theirs = load_runs("tiny", runs_folder=runs_folder), load_runs("tiny", uri)
    assert ours["status"].tolist() == ["done"] * 3
    assert set(theirs["machine"]) == {machine()}
    pd.testing.assert_frame_equal(ours, theirs)
    epochs = load_epochs("tiny", uri)
    assert epochs["rung"].tolist() == [0, 1, 1] * 3
    pd.testing.assert_frame_equal(load_epochs("tiny", runs_folder=runs_folder), epochs)
    for number in theirs["trial"][theirs["on_front"]]:
        run = recorder.tracker.run_ids[int(number)]
        assert "network.safetensors" in artifacts(local(runs_folder), run)
