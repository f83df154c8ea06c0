"""export and report: what is written, and where."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from slb_autotune.analysis.result import load_result, study_result
from tests.cli.helpers import complaint, played_study


def test_a_study_is_exported_as_tables_that_can_be_loaded(slb, tmp_path):
    study = played_study(tmp_path / "slb-runs")
    ended = slb("export", "tiny", "--to", "tables", "--json")
    names = ["tiny.study.json", "tiny.runs.csv", "tiny.epochs.csv"]
    assert ended.json() == {"files": [f"tables/{name}" for name in names]}
    result = load_result(Path("tables"), "tiny.")
    pd.testing.assert_frame_equal(result.trials, study_result(study).trials)
    assert result.hypervolume == study.hypervolume()
    lines = slb("export", "tiny").out.splitlines()
    size = Path("slb-runs/studies/tiny/tiny.runs.csv").stat().st_size
    assert lines[1] == f"wrote      slb-runs/studies/tiny/tiny.runs.csv ({size:,} bytes)"


def test_a_run_is_packed(slb, tiny):
    slb("train", tiny, "--folder", "run")
    ended = slb("export", "run", "--to", "small.safetensors")
    assert ended.code == 0
    size = Path("small.safetensors").stat().st_size
    assert ended.out == f"wrote      small.safetensors ({size:,} bytes)\n"


def test_what_cannot_be_exported_is_bad_input(slb):
    message, hint = complaint(slb("export", "nothing"))
    assert message == "there is no run 'nothing'"
    assert hint == "none is in slb-runs; --runs names another folder."


def test_the_page_of_a_study_is_written_into_its_folder(slb, tmp_path):
    study = played_study(tmp_path / "slb-runs")
    page = study.folder / "report" / "index.html"
    ended = slb("report", "tiny")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"page       {page}\n"
    assert page.read_text().startswith("<!")
    assert slb("report", "tiny", "--json").json() == {"page": str(page)}
