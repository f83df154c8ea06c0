"""What is written into the page of a study."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from slb_autotune.analysis.result import StudyResult
from slb_autotune.analysis.tables import RUN_COLUMNS, typed
from slb_autotune.config.metrics import METRICS
from slb_autotune.report.page import payload, render_page
from tests.report.invented import invented_page, invented_result, invented_study


def test_the_same_input_gives_the_same_bytes(study: StudyResult) -> None:
    assert render_page(invented_page(study)) == render_page(invented_page(invented_study()))


def test_curves_stand_in_the_order_of_the_runs(study: StudyResult) -> None:
    mixed = replace(
        study,
        trials=study.trials.sample(frac=1, random_state=1),
        epochs=study.epochs.sample(frac=1, random_state=2),
    )
    found = payload(mixed)
    start = 0
    for place, trial in enumerate(found["columns"]["trial"]):
        own = study.epochs[study.epochs["trial"] == trial].sort_values(["rung", "epoch"])
        end = start + found["epoch_counts"][place]
        for name in ("rung", "epoch", "temperature", "val_accuracy", "quantization_gap"):
            expected = [pytest.approx(value, rel=1e-4) for value in own[name]]
            assert found["epochs"][name][start:end] == expected
        start = end
    assert start == len(study.epochs)


def test_missing_and_infinite_numbers_become_null() -> None:
    rows = [{"study": "s", "trial": 0, "val_loss": float("inf"), "T_e": 100.0}, {"lr": 0.125}]
    found = payload(invented_result(typed(rows, RUN_COLUMNS)))["columns"]
    assert "val_loss" not in found
    assert (found["trial"], found["T_e"], found["lr"]) == ([0, None], [100, None], [None, 0.125])


def test_searched_values_that_no_column_has_become_columns(study: StudyResult) -> None:
    found = payload(study)["columns"]
    assert {f"weight_bits/layer{stage}.*" for stage in (1, 2, 3)} <= set(found)
    assert "temperature.T_e" not in found, "the column T_e has it"


def test_every_metric_is_a_column_an_axis_and_has_its_label() -> None:
    row = {"study": "s", "trial": 0, "status": "done", **dict.fromkeys(METRICS, 2)}
    found = payload(invented_result(typed([row], RUN_COLUMNS)))
    for name, metric in METRICS.items():
        assert found["columns"][name] == [2]
        assert name in found["axes"]
        shown = found["labels"][name]
        assert (shown["label"], shown["unit"]) == (metric.short, metric.unit)
        assert (shown["scale"], shown["decimals"]) == (metric.scale, metric.decimals)
        assert shown["long"].lower() == metric.label.lower()


ADDED = """
import json, sys
from slb_autotune.config import metrics
energy = metrics.Metric(
    "energy", "energy of an image", "Energy", "minimize", "epoch", "mJ", scale=1e3, decimals=3
)
# The table is read-only. Before the tables are imported, this is as if it stood in that file.
metrics.METRICS._metrics["energy"] = energy
from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS, typed
from slb_autotune.report import figures, own_tables
from slb_autotune.report.page import payload
from tests.report.invented import invented_result
rows = [
    {"study": "s", "trial": t, "status": "done", "source": "sampler", "energy": 0.001 * (t + 1)}
    | {"val_accuracy": 90.0 + t, "size_bytes": 1000}
    for t in range(3)
]
epochs = [{"study": "s", "trial": 0, "rung": 0, "epoch": 1, "energy": 0.002}]
tables = typed(rows, RUN_COLUMNS), typed(epochs, EPOCH_COLUMNS)
result = invented_result(*tables, metrics=("val_accuracy", "energy"))
axes = figures.draw_front(result).axes[0]
tip = figures.interactive_front(result)["data"][-1]["text"][0]
table = own_tables.front_table([result])
heads = [column.heading for column in table.shown()]
found = payload(result)
keep = ("columns", "labels", "axes", "objectives", "curves", "epochs")
print(json.dumps([axes.get_xlabel(), tip, heads, {k: found[k] for k in keep}]))
"""


def test_a_metric_that_is_added_appears_without_a_change_here() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADDED], check=True, capture_output=True, encoding="utf-8"
    )
    label, tip, heads, found = json.loads(done.stdout)
    assert label == "energy of an image (mJ)"
    assert "energy of an image: 1 mJ" in tip
    assert "Energy (mJ)" in heads
    assert found["columns"]["energy"] == [0.001, 0.002, 0.003]
    assert found["labels"]["energy"]["unit"] == "mJ"
    assert "energy" in found["axes"]
    assert found["objectives"][1] == ["energy", "minimize"]
    assert "energy" in [curve["key"] for curve in found["curves"]]
    assert found["epochs"]["energy"] == [0.002]
