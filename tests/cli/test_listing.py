"""list: every name with one line, and the runs."""

from __future__ import annotations

import re

import pytest

from slb_autotune.cli.listing import catalogue
from slb_autotune.config.metrics import METRICS
from slb_autotune.config.trial import TrialConfig
from slb_autotune.training.run_folder import RunFolder
from tests.builders import tiny_config

KINDS = [
    *("networks", "data", "methods", "activations", "schedules", "samplers", "recipes"),
    *("metrics", "fields"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_list_is_shown_in_lines_and_in_json(slb, kind):
    shown = slb("list", kind)
    table = slb("list", kind, "--json").json()
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert lines[0] == kind
    assert [line.split()[0] for line in lines[1:]] == list(table)
    assert all(line.endswith(row) for line, row in zip(lines[1:], table.values(), strict=True))


def test_all_lists_together_leave_out_the_fields(slb):
    tables = slb("list", "--json").json()
    assert list(tables) == [kind for kind in KINDS if kind != "fields"]


def test_no_runs_yet(slb):
    assert slb("list", "runs").out == "runs\n  none yet\n"
    assert slb("list", "runs", "--json").json() == {}


def test_fields_show_their_default_and_their_short_name():
    fields = catalogue()["fields"]
    assert fields["temperature.T_e"] == "[1000.0] T at the end (also T_e)"
    assert fields["epochs"].startswith("[20]")
    mapping = TrialConfig().to_mapping()
    for name in fields:
        value = mapping
        for part in name.split("."):
            value = value[part]


def test_every_field_is_explained():
    fields = catalogue()["fields"]
    bare = [name for name, row in fields.items() if re.fullmatch(r"\[.*\]( \(also .*\))?", row)]
    assert bare == []


def test_unfinished_and_failed_runs_are_listed(slb):
    RunFolder("slb-runs/trials/begun").open(tiny_config())
    RunFolder("slb-runs/trials/failed").open(tiny_config())
    RunFolder("slb-runs/trials/failed").save_result({"status": "failed", "reason": "nan"})
    assert slb("list", "runs", "--json").json() == {"begun": "unfinished", "failed": "failed"}


def test_every_metric_is_listed_with_its_unit_direction_and_when_it_is_known():
    rows = catalogue()["metrics"]
    assert list(rows) == list(METRICS)
    assert rows["size_bytes"] == "size; shown in kB; minimize; known before training"
    assert rows["val_psnr"] == "validation PSNR; in dB; maximize; measured after every epoch"
    assert rows["train_loss"] == "training loss; minimize; measured after every epoch"
    assert rows["test_accuracy"].endswith(
        "measured on the test set, by confirm and evaluate alone"
    )


@pytest.mark.parametrize("text", ["{", "{}"])
def test_a_damaged_result_does_not_hide_the_other_runs(slb, text):
    RunFolder("slb-runs/trials/good").open(tiny_config())
    RunFolder("slb-runs/trials/bad").open(tiny_config())
    RunFolder("slb-runs/trials/bad").result_path.write_text(text)
    assert "good" in slb("list", "runs", "--json").json()
