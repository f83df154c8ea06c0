"""The paper's tables from invented runs."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pandas as pd
import pytest

from slb_autotune.analysis.comparisons import TIMES
from slb_autotune.analysis.paper_numbers import read_published, read_references
from slb_autotune.analysis.tables import RUN_COLUMNS, read_runs, typed, write
from slb_autotune.report.paper_tables import paper_tables, references_table
from slb_autotune.report.table import Table, to_markdown
from tests.report.table_runs import INVENTED, LONG_ID, cell, paper_runs, rows_of

NUMBERS = Path(__file__).parents[2] / "results" / "paper"


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return typed(INVENTED, RUN_COLUMNS)


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return read_published(NUMBERS)


@pytest.fixture(scope="module")
def tables(runs: pd.DataFrame, published: pd.DataFrame) -> dict[str, Table]:
    return {table.name: table for table in paper_tables(runs, published)}


def test_rows_stand_in_the_papers_order(tables, published):
    for name in ("table1", "table2", "table3", "sbn"):
        expected = published[published["table"] == name].drop_duplicates(["part", "row"])
        assert [row["method"] for row in rows_of(tables[name])] == expected["method"].tolist()
    assert [row["part"] for row in rows_of(tables["schedules"])] == ["sin", "linear", "exp"]
    assert len(tables["table3"].rows) == 36


@pytest.mark.parametrize(
    ("method", "bits", "verdict", "measured", "seeds"),
    [
        ("FP32", "32/32", "reproduced", 92.2333333, 3),
        ("DoReFa", "1/1", "above", 79.9, 1),
        ("DSQ", "1/1", "not run", None, None),
        ("SLB", "1/1", "above", 87.1, 2),
        ("SLB", "1/2", "below", 88.0, 1),
        ("SLB", "1/4", "reduced budget", 86.3, 2),
        ("SLB", "1/8", "reduced budget", 90.5, 1),
        ("SLB", "1/32", "reduced budget", 59.1, 2),
        ("SLB", "2/2", "reproduced", 90.0, 2),
        ("SLB", "2/4", "not run", None, None),
        ("SLB", "2/32", "reproduced", 92.01, 1),
    ],
)
def test_cells_of_table_1(tables, method, bits, verdict, measured, seeds):
    found = cell(tables["table1"], method, bits)
    assert (found["verdict"], found["seeds"]) == (verdict, seeds)
    assert found["measured_test_accuracy"] == (
        measured if measured is None else pytest.approx(measured)
    )


def test_a_difference_and_a_spread_are_those_of_the_seeds(tables):
    found = cell(tables["table1"], "FP32", "32/32")
    assert found["spread_test_accuracy"] == pytest.approx(statistics.stdev([92.3, 92.0, 92.4]))
    assert found["difference_test_accuracy"] == pytest.approx(92.233333 - 92.1, abs=1e-6)
    assert cell(tables["table1"], "SLB", "1/2")["spread_test_accuracy"] is None


def test_no_measured_number_is_without_its_budget(tables):
    for name in ("table1", "table2", "table3", "schedules", "sbn", "vdsr"):
        for row in rows_of(tables[name]):
            measured = [v for k, v in row.items() if k.startswith("measured_") and v is not None]
            assert bool(measured) == bool(row["budget"]) == bool(row["run_ids"])
    assert cell(tables["table1"], "SLB", "1/4")["budget"] == "20 % of epochs, 90 % of images"
    assert "unknown share" in cell(tables["table1"], "SLB", "1/8")["budget"]


def test_the_papers_temperature_is_shown_and_other_settings_are_named(tables):
    assert cell(tables["table1"], "SLB", "1/32")["note"] == ""
    (note,) = [note for note in tables["table1"].notes if note.startswith("SLB 1/32")]
    assert "T_e 1000, SBN calibrated, lr 0.1 gave 78.05 ± 0.15" in note
    assert "invented_short_hard:0" in note


def test_a_foreign_temperature_is_said_in_the_cell(published):
    rows = paper_runs("hard", [78.0], epochs=5, schedule="linear", T_e=1000.0)
    table = paper_tables(typed(rows, RUN_COLUMNS), published)[0]
    assert cell(table, "SLB", "1/1")["note"] == "linear, T_e 1000"
    assert "Unlike the paper" in to_markdown(table)
    assert cell(table, "SLB", "1/1")["budget"] == "1 % of epochs, 100 % of images"


def test_more_seeds_do_not_win_over_the_papers_temperature_nor_does_a_better_test(published):
    rows = [*paper_runs("paper", [50.0]), *paper_runs("other", [90.0, 91.0], T_e=1000.0)]
    table = paper_tables(typed(rows, RUN_COLUMNS), published)[0]
    assert cell(table, "SLB", "1/1")["measured_test_accuracy"] == 50.0


def test_only_equal_settings_are_averaged(published):
    rows = [*paper_runs("a", [80.0]), *paper_runs("b", [90.0], seed=1, lr=0.2)]
    table = paper_tables(typed(rows, RUN_COLUMNS), published)[0]
    assert cell(table, "SLB", "1/1")["seeds"] == 1


def test_the_figure_of_schedules_has_no_number_to_compare_with(tables):
    found = cell(tables["schedules"], "SLB", "1/1", "sin")
    assert (found["verdict"], found["measured_test_accuracy"]) == ("no number", 83.0)
    assert cell(tables["schedules"], "SLB", "1/1", "exp")[
        "measured_test_accuracy"
    ] == pytest.approx(87.1)
    assert cell(tables["schedules"], "SLB", "1/1", "linear")["verdict"] == "not run"


def test_sbn_and_its_absence_are_told_apart(tables):
    table = tables["sbn"]
    assert cell(table, "SLB", "1/1")["measured_test_accuracy"] == 61.2
    assert cell(table, "SLB (w/o SBN)", "1/1")["measured_test_accuracy"] == 60.7
    assert table.notes[-1] == "Top-1 falls by 0.3 without SBN in the paper, by 0.50 here."
    assert cell(tables["table3"], "SLB", "1/1", "left")["measured_test_accuracy_top5"] == 83.0
    assert cell(tables["table3"], "SLB (w/o SBN)", "1/1", "left")["verdict"] == "reproduced"


def test_scales_of_super_resolution_are_told_apart(tables):
    table = tables["vdsr"]
    found = cell(table, "SLB", "1/?", TIMES + "2")
    assert (found["verdict"], found["note"]) == ("reproduced", "activations 32 bit")
    assert cell(table, "FP32", "32/32", TIMES + "3")["verdict"] == "below"
    assert cell(table, "SLB", "1/?", TIMES + "3")["verdict"] == "not run"
    assert "Runs of VDSR whose scale is not recorded are left out." in table.notes


def test_run_ids_are_short_for_people_and_whole_for_programs(tables):
    found = cell(tables["table1"], "FP32", "32/32")
    assert found["runs"] == "01234567, 01234567, 01234567"
    assert found["run_ids"] == " ".join([LONG_ID] * 3)
    assert cell(tables["table1"], "SLB", "1/1")["runs"] == "invented_above:0, 1"
    assert cell(tables["table1"], "SLB", "1/1")["run_ids"] == "invented_above:0 invented_above:1"


def test_the_same_tables_come_from_the_csv_of_the_runs(runs, published, tables, tmp_path):
    write(runs, tmp_path / "runs.csv")
    shuffled = read_runs(tmp_path / "runs.csv").sample(frac=1.0, random_state=0)
    for table in paper_tables(shuffled, published):
        assert to_markdown(table) == to_markdown(tables[table.name])


def test_no_runs_give_whole_tables(published):
    found = paper_tables(typed([], RUN_COLUMNS), published)
    assert {row["verdict"] for table in found for row in rows_of(table)} == {"not run"}


def test_references_keep_their_digits():
    text = to_markdown(references_table(read_references(NUMBERS)))
    assert re.search(r"ReSTE +\| resnet20 .*\| +86\.75 \|", text)
    assert re.search(r"ReCU +\| resnet20 .*\| +88\.0 \| fine-tuned", text)
