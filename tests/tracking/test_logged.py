"""What MLflow holds of a study and its trials."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from slb_autotune import train
from slb_autotune.export.packed import load_packed
from slb_autotune.tracking import Tracker, load_runs
from slb_autotune.training.evaluation import load_run
from tests.builders import tiny_config
from tests.tracking.helpers import (
    BEGAN,
    RAN_ON,
    artifacts,
    entry,
    local,
    record,
    study,
    study_folder,
    uri_of,
    wait_until,
)


def test_a_trial_is_a_child_of_its_study(runs_folder):
    tracker = record(runs_folder, [entry(runs_folder, 0), entry(runs_folder, 1)])
    client = local(runs_folder)
    parent = client.get_run(tracker.parent_id)
    assert client.get_experiment(parent.info.experiment_id).name == "tiny"
    assert parent.data.tags["kind"] == "study"
    assert parent.data.tags["objectives"] == "val_accuracy, size_bytes"
    assert set(tracker.run_ids) == {0, 1}
    for number, run_id in tracker.run_ids.items():
        run = client.get_run(run_id)
        assert run.data.tags["mlflow.parentRunId"] == tracker.parent_id
        assert run.data.tags["trial"] == str(number)
        assert run.info.start_time == (BEGAN + number) * 1000


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("done", "FINISHED"),
        ("reused", "FINISHED"),
        ("stopped", "KILLED"),
        ("failed", "FAILED"),
        ("running", "RUNNING"),
    ],
)
def test_a_status_is_mlflows_and_our_own_is_a_tag(runs_folder, status, state):
    tracker = record(runs_folder, [entry(runs_folder, 3, status)])
    run = local(runs_folder).get_run(tracker.run_ids[3])
    assert run.info.status == state
    assert run.data.tags["status"] == status
    assert run.data.tags.get("reason", "") == entry(runs_folder, 3, status).record.reason


def test_settings_have_readable_names_and_tags_say_what_it_ran_on(runs_folder):
    tracker = record(runs_folder, [entry(runs_folder, 0)])
    run = local(runs_folder).get_run(tracker.run_ids[0])
    wanted = {"T_e": "100.0", "schedule": "exp", "weight_bits": "mixed", "network": "resnet20"}
    assert wanted.items() <= run.data.params.items()
    assert run.data.params["weight_bits/layer1._"] == "2"
    tags = {"seed": "0", "attempt": "1", "source": "sampler", "threads": "3", "precision": "bf16"}
    assert tags.items() <= run.data.tags.items()
    # What the worker recorded, not what this process has.
    assert {name: run.data.tags[name] for name in RAN_ON} == {n: str(v) for n, v in RAN_ON.items()}


def test_costs_are_there_before_training_and_the_result_at_the_end(runs_folder):
    tracker = record(runs_folder, [entry(runs_folder, 0, "running"), entry(runs_folder, 1)])
    client = local(runs_folder)
    running, done = (client.get_run(tracker.run_ids[n]).data.metrics for n in (0, 1))
    assert (running["size_bytes"], done["size_bytes"]) == (1000.0, 1001.0)
    assert "seconds" not in running
    assert (done["seconds"], done["epochs_spent"], done["train_images"]) == (2.5, 6.0, 64.0)
    (size,) = client.get_metric_history(tracker.run_ids[1], "size_bytes")
    assert (size.step, size.timestamp) == (0, (BEGAN + 1) * 1000)


def test_epochs_are_numbered_through_the_rungs(runs_folder):
    tracker = record(runs_folder, [entry(runs_folder, 0)])
    client = local(runs_folder)

    def history(key: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in client.get_metric_history(tracker.run_ids[0], key)]

    assert history("rung") == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 1)]
    assert history("epoch") == [(1, 1), (2, 2), (3, 1), (4, 2), (5, 3), (6, 4)]
    assert history("val_accuracy")[1] == (2, 2 / 3)
    assert history("val_accuracy")[2] == (3, 10 + 1 / 3)
    # Of the trial: 0.25 + 0.5 in the rung, then 0.25, 0.5, 0.75, 1.
    stamps = [m.timestamp for m in client.get_metric_history(tracker.run_ids[0], "epoch")]
    assert [(s - BEGAN * 1000) / 1000 for s in stamps] == [0.25, 0.75, 1.0, 1.5, 2.25, 3.25]
    assert client.get_run(tracker.run_ids[0]).info.end_time == BEGAN * 1000 + 3250


def test_rungs_within_one_run_are_distinguished_by_their_last_epoch(runs_folder):
    stages = (("full", 1), ("full", 3), ("full", 4))
    trial = entry(runs_folder, 0, stages=stages)
    tracker = record(runs_folder, [trial])
    history = local(runs_folder).get_metric_history(tracker.run_ids[0], "rung")
    assert [m.value for m in history] == [0, 1, 1, 2]


def test_a_trial_has_its_files(runs_folder):
    trial = entry(runs_folder, 0)
    tracker = record(runs_folder, [trial])
    client = local(runs_folder)
    assert artifacts(client, tracker.run_ids[0]) == {"config.yaml", "bits.json", "history.csv"}
    folder = Path(client.download_artifacts(tracker.run_ids[0], ""))
    assert (folder / "config.yaml").read_text() == trial.record.config.to_yaml()
    assert json.loads((folder / "bits.json").read_text()) == trial.record.bits
    table = pd.read_csv(folder / "history.csv")
    assert table["rung"].tolist() == [0, 0, 1, 1, 1, 1]
    assert table["epoch"].tolist() == [1, 2, 1, 2, 3, 4]
    assert folder.is_relative_to(runs_folder / "mlflow-artifacts")


def test_the_study_has_its_file_fronts_hypervolume_and_status(runs_folder, tmp_path):
    note = tmp_path / "report.html"
    note.write_text("a report")
    tracker = Tracker(None, runs_folder, "tiny", study_folder(runs_folder))
    tracker.start()
    tracker.attach(note, "reports")
    first = study(runs_folder)
    tracker.submit(first, [])
    wait_until(lambda: tracker.parent_id and local_fronts(runs_folder, tracker) == 1)
    later = [pd.DataFrame({"trial": [0, n], "val_accuracy": [11.0, n]}) for n in (4, 11)]
    later_study = study(
        runs_folder,
        fronts=[*first.fronts, (5, later[0]), (12, later[1])],
        hypervolume=[(1, 0.25), (2, 0.5), (5, 0.625), (12, 0.75)],
        status="done",
    )
    tracker.submit(later_study, [])
    assert tracker.close(60) == 0
    client = local(runs_folder)
    assert artifacts(client, tracker.parent_id) == {"study.yaml", "fronts", "reports"}
    # Every change, however many of them came between two messages.
    for count, front in later_study.fronts:
        path = client.download_artifacts(tracker.parent_id, f"fronts/front_{count:05d}.csv")
        pd.testing.assert_frame_equal(pd.read_csv(path), front, check_dtype=False)
    assert local_fronts(runs_folder, tracker) == 3
    assert artifacts(client, tracker.parent_id, "reports") == {"reports/report.html"}
    history = client.get_metric_history(tracker.parent_id, "hypervolume")
    assert [(m.step, m.value) for m in history] == later_study.hypervolume
    assert client.get_run(tracker.parent_id).info.status == "FINISHED"


def local_fronts(runs: Path, tracker: Tracker) -> int:
    return len(artifacts(local(runs), tracker.parent_id, "fronts"))


def test_long_bit_vectors_are_kept_whole(runs_folder):
    bits = {f"stage{i % 4}.block{i}.convolution": 1 + i % 4 for i in range(1500)}
    params = {f"weight_bits/{name}": width for name, width in bits.items()}
    trial = entry(runs_folder, 0, bits=bits, params=params)
    tracker = record(runs_folder, [trial])
    run = local(runs_folder).get_run(tracker.run_ids[0])
    assert len(run.data.params["bits_digest"]) == 10
    assert max(map(len, run.data.params.values())) <= 500
    row = load_runs("tiny", uri_of(runs_folder)).iloc[0]
    assert json.loads(row["bits"]) == bits
    assert json.loads(row["params"]) == trial.record.params
    path = local(runs_folder).download_artifacts(tracker.run_ids[0], "bits.json")
    assert json.loads(Path(path).read_text()) == bits


def test_a_change_of_the_front_changes_the_tag(runs_folder, caplog):
    tracker = record(runs_folder, [entry(runs_folder, 0, on_front=True)])
    assert load_runs("tiny", uri_of(runs_folder))["on_front"].tolist() == [True]
    # Its folder has no checkpoint: that is reported, and stops nothing.
    assert [r.message for r in caplog.records if "was not packed" in r.message]
    record(runs_folder, [entry(runs_folder, 0), entry(runs_folder, 1)])
    assert load_runs("tiny", uri_of(runs_folder))["on_front"].tolist() == [False, False]
    assert local(runs_folder).get_run(tracker.run_ids[0]).data.tags["on_front"] == "false"


def test_a_member_of_the_front_has_its_packed_network(runs_folder):
    config = tiny_config()
    folder = study_folder(runs_folder) / "trials" / "00000"
    train(config, folder=folder / "full")
    trial = entry(runs_folder, 0, "reused", config=config, stages=(), on_front=True)
    tracker = record(runs_folder, [trial])
    path = local(runs_folder).download_artifacts(tracker.run_ids[0], "network.safetensors")
    x = torch.rand(2, 1, 8, 8)
    _, network = load_run(folder / "full", torch.device("cpu"))
    assert torch.equal(load_packed(Path(path))(x), network(x))
