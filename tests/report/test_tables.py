"""Tables from invented runs: no number of this file was ever measured.

The files in golden/ hold the rendering; `SLB_WRITE_GOLDEN=1` writes them anew, for a look by eye.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import statistics
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from slb_autotune.report.paper import MINUS, TIMES, read_published, read_references
from slb_autotune.report.tables import paper_tables, references_table

from slb_autotune.analysis.tables import RUN_COLUMNS, read_runs, typed, write
from slb_autotune.errors import InputError
from slb_autotune.report.own_tables import (
    best_schedules,
    front_table,
    layers_text,
    methods_table,
    own_tables,
    search_against_confirmed,
    search_against_uniform,
)
from slb_autotune.report.table import (
    RENDERERS,
    Column,
    Table,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
    write_tables,
)

REPOSITORY = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
PAPER = {"schedule": "exp", "T_s": 0.01, "T_e": 10.0, "norm": "paper", "lr": 0.1}


def paper_runs(name: str, values: list[float], **changes: Any) -> list[dict[str, Any]]:
    """Invented runs of a paper table, a seed a value: 1/1 ResNet20 by the paper's recipe."""
    common = {
        "study": f"invented_{name}",
        "status": "done",
        "network": "resnet20",
        "data": "cifar10",
        "method": "slb",
        "weight_bits": "1",
        "activation_bits": "1",
        "epochs": 500,
        "train_images": 50_000,
        "batch_size": 100,
        **PAPER,
    }
    metric = changes.pop("metric", "test_accuracy")
    return [
        {**common, "trial": seed, "seed": seed, metric: value, **changes}
        for seed, value in enumerate(values)
    ]


def searched(
    trial: int, bits: tuple[int, int, int], value: float, **changes: Any
) -> dict[str, Any]:
    """An invented trial of a search over digits, with bits for three layers."""
    layers = dict(zip(("layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1"), bits, strict=True))
    size = 1000 * sum(bits)
    return {
        "study": "invented_search",
        "trial": trial,
        "status": "done",
        "source": "sampler",
        "on_front": False,
        "network": "resnet20",
        "width": 8,
        "data": "digits",
        "method": "slb",
        "weight_bits": str(bits[0]) if len(set(bits)) == 1 else "mixed",
        "activation_bits": "32",
        "bits": json.dumps(layers),
        "schedule": "exp",
        "T_s": 0.01,
        "T_e": 1000.0,
        "lr": 0.1,
        "norm": "calibrate",
        "epochs": 8,
        "batch_size": 50,
        "train_images": 1617,
        "seed": 0,
        "val_accuracy": value,
        "size_bytes": size,
        "average_weight_bits": sum(bits) / 3,
        **changes,
    }


def confirming(trial: int, seed: int, bits: tuple[int, int, int], value: float) -> dict[str, Any]:
    row = searched(trial, bits, 0.0, study="invented_search.confirm", seed=seed)
    row |= {"epochs": 20, "train_images": 1797, "test_accuracy": value}
    return {name: cell for name, cell in row.items() if name != "val_accuracy"}


SEARCH = [
    searched(0, (1, 1, 1), 90.0, source="uniform 1 bit", on_front=True),
    searched(1, (2, 2, 2), 93.0, source="uniform 2 bit"),
    searched(2, (4, 4, 4), 96.0, source="uniform 4 bit", T_e=300.0, on_front=True),
    searched(3, (1, 2, 1), 94.5, T_e=250.0, lr=0.05, on_front=True),
    searched(4, (1, 2, 2), 91.0, T_e=40.0),
    searched(5, (4, 1, 1), 20.0, status="stopped", reason="rung 0"),
    searched(6, (4, 1, 1), 99.0, status="failed", reason="not a number"),
]
CONFIRM = [
    confirming(0, 0, (1, 1, 1), 88.0),
    confirming(1, 1, (1, 1, 1), 89.0),
    confirming(2, 2, (1, 1, 1), 88.4),
    {**confirming(3, 0, (1, 2, 1), 95.25), "T_e": 250.0, "lr": 0.05},
]
IMAGENET = {"network": "resnet18", "data": "imagenet", "lr": 1e-3, "batch_size": 256}
IMAGENET |= {"epochs": 240, "train_images": 1_281_167}
VDSR = {"network": "vdsr", "data": "sr_folder", "metric": "test_psnr", "batch_size": 64}
VDSR |= {"epochs": 80, "train_images": 64_000}
FLOAT = {"method": "float", "weight_bits": "32", "activation_bits": "32"}
FLOAT |= {"schedule": "", "T_s": None, "T_e": None, "norm": ""}
LONG_ID = "0123456789abcdef0123456789abcdef"

INVENTED = [
    *paper_runs("float", [92.3, 92.0, 92.4], **FLOAT, run_id=LONG_ID),
    *paper_runs("dorefa", [79.9], method="dorefa", T_e=1000.0),
    *paper_runs("above", [87.0, 87.2]),
    *paper_runs("sin", [83.0], schedule="sin"),
    *paper_runs("below", [88.0], activation_bits="2"),
    *paper_runs("small_budget", [99.0], activation_bits="4", epochs=5),
    *paper_runs(
        "large_budget", [86.1, 86.5], activation_bits="4", epochs=100, train_images=45_000
    ),
    *paper_runs("unknown_images", [90.5], activation_bits="8", train_images=None),
    *paper_runs("short", [58.9, 59.3], activation_bits="32", epochs=5),
    *paper_runs(
        "short_hard",
        [78.06, 77.9, 78.2],
        activation_bits="32",
        epochs=5,
        T_e=1000.0,
        norm="calibrate",
    ),
    *paper_runs("two_errors", [89.0, 91.0], weight_bits="2", activation_bits="2"),
    *paper_runs("two_errors_again", [50.0], weight_bits="2", activation_bits="2", status="reused"),
    *paper_runs("narrow", [99.0], weight_bits="2", activation_bits="4", width=8),
    *paper_runs("failed", [99.0], weight_bits="2", activation_bits="4", status="failed"),
    *paper_runs("untested", [99.0], weight_bits="2", activation_bits="4", metric="val_accuracy"),
    *paper_runs("mixed", [99.0], weight_bits="mixed", activation_bits="4"),
    *paper_runs("published_width", [92.01], weight_bits="2", activation_bits="32", width=16),
    *paper_runs("imagenet", [61.2], **IMAGENET, test_accuracy_top5=83.0),
    *paper_runs("imagenet_no_sbn", [60.7], **{**IMAGENET, "norm": "off"}),
    *paper_runs("vdsr_x2", [36.9], **VDSR, activation_bits="32", params='{"data.scale": 2}'),
    *paper_runs("vdsr_x3", [33.5], **{**VDSR, **FLOAT}, params='{"data.scale": 3}'),
    *paper_runs("vdsr", [40.0], **VDSR),
    *SEARCH,
    *CONFIRM,
]


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return typed(INVENTED, RUN_COLUMNS)


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return read_published(REPOSITORY / "results" / "paper")


@pytest.fixture(scope="module")
def tables(runs, published) -> dict[str, Table]:
    return {table.name: table for table in [*paper_tables(runs, published), *own_tables(runs)]}


def rows_of(table: Table) -> list[dict[str, Any]]:
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, row, strict=True)) for row in table.rows]


def cell(table: Table, method: str, bits: str, part: str = "") -> dict[str, Any]:
    (found,) = [
        row
        for row in rows_of(table)
        if (row["method"], row["bits"], row["part"]) == (method, bits, part)
    ]
    return found


# The paper's tables.


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


# Our own tables.


def test_best_schedules_against_a_slow_look(runs):
    found = [row for row in rows_of(best_schedules(runs)) if row["data"] == "digits"]
    mixed, one, two, four = sorted(found, key=lambda row: -row["trials"])
    assert (mixed["value"], mixed["T_e"], mixed["lr"], mixed["trials"]) == (94.5, 250.0, 0.05, 2)
    assert mixed["value"] == max(row["val_accuracy"] for row in SEARCH[3:5])
    assert [row["bits"] for row in (one, two, four)] == ["1/32", "2/32", "4/32"]
    assert {(row["epochs"], row["train_images"]) for row in (mixed, one, two, four)} == {(8, 1617)}
    assert mixed["network"] == "resnet20, width 8"


def test_trials_of_other_budgets_are_not_compared():
    rows = [searched(0, (1, 1, 1), 90.0), searched(1, (1, 1, 1), 95.0, epochs=80)]
    found = rows_of(best_schedules(typed(rows, RUN_COLUMNS)))
    assert sorted((row["epochs"], row["value"], row["trials"]) for row in found) == [
        (8, 90.0, 1),
        (80, 95.0, 1),
    ]


def test_a_reused_trial_is_not_compared_twice():
    rows = [searched(0, (1, 1, 1), 90.0), searched(1, (1, 1, 1), 90.0, status="reused")]
    (row,) = rows_of(best_schedules(typed(rows, RUN_COLUMNS)))
    assert (row["trials"], row["run"]) == (1, "invented_search:0")


def test_the_front_is_ordered_by_size_and_shows_every_layer(runs):
    rows = rows_of(front_table(runs))
    assert [(row["trial"], row["size_bytes"], row["layers"]) for row in rows] == [
        (0, 3000, "layer1 1, layer2 1"),
        (3, 4000, "layer1 1 2, layer2 1"),
        (2, 12000, "layer1 4, layer2 4"),
    ]
    assert json.loads(rows[1]["layer_bits"])["layer1.0.conv2"] == 2


def test_layers_of_a_block_are_written_out_where_they_differ():
    bits = {"conv1": 32, "layer1.0.conv1": 1, "layer1.0.conv2": 2, "layer2.0.conv1": 4}
    assert layers_text(json.dumps(bits)) == "conv1 32, layer1 1 2, layer2 4"
    assert layers_text(None) == ""


def area(points: list[tuple[float, float]], worst: tuple[float, float]) -> float:
    """Hypervolume in two dimensions by counting the cells of the grid that the points span."""
    highs = sorted({0.0, *(value for value, _ in points)})
    sizes = sorted({worst[1], *(size for _, size in points)})
    total = 0.0
    for low, high in pairwise(highs):
        for small, large in pairwise(sizes):
            if any(value >= high and size <= small for value, size in points):
                total += (high - low) * (large - small)
    return total


def test_search_against_uniform_is_the_slow_hypervolume(runs):
    (row,) = rows_of(search_against_uniform(runs))
    results = [(r["val_accuracy"], r["size_bytes"]) for r in SEARCH[:5]]
    box = 100.0 * 24_000
    assert row["hypervolume"] == pytest.approx(area(results, (0, 24_000)) / box)
    assert row["hypervolume_uniform"] == pytest.approx(area(results[:3], (0, 24_000)) / box)
    assert row["gain"] == pytest.approx(
        100 * (row["hypervolume"] / row["hypervolume_uniform"] - 1)
    )
    assert (row["results"], row["uniform_results"]) == (5, 3)
    assert (row["epochs"], row["train_images"]) == (8, 1617)


def test_a_study_of_several_budgets_says_so():
    rows = [
        searched(0, (1, 1, 1), 90.0),
        searched(1, (1, 2, 1), 95.0, epochs=80, train_images=None),
    ]
    (row,) = rows_of(search_against_uniform(typed(rows, RUN_COLUMNS)))
    assert (row["epochs"], row["train_images"]) == ("8 to 80", 1617)


def test_a_reference_can_be_given_and_must_fit(runs):
    (row,) = rows_of(search_against_uniform(runs, {"invented_search": [50.0, 12_000.0]}))
    results = [(r["val_accuracy"] - 50, r["size_bytes"]) for r in SEARCH[:5]]
    assert row["hypervolume"] == pytest.approx(area(results, (0, 12_000)) / (50 * 12_000))
    with pytest.raises(InputError, match="must have 2 values; got 1"):
        search_against_uniform(runs, {"invented_search": [50.0]})


def test_a_study_of_uniform_bits_alone_is_left_out():
    rows = [searched(0, (1, 1, 1), 90.0), searched(1, (2, 2, 2), 95.0)]
    assert search_against_uniform(typed(rows, RUN_COLUMNS)).rows == ()


def test_confirmed_values_stand_beside_what_the_search_saw(runs):
    one, mixed, four = rows_of(search_against_confirmed(runs))
    assert (one["trial"], one["value"], one["seeds"]) == (0, 90.0, 3)
    assert one["confirmed"] == pytest.approx(statistics.mean([88.0, 89.0, 88.4]))
    assert one["spread"] == pytest.approx(statistics.stdev([88.0, 89.0, 88.4]))
    assert one["drop"] == pytest.approx(90.0 - one["confirmed"])
    assert (one["epochs"], one["confirmed_epochs"], one["confirmed_train_images"]) == (8, 20, 1797)
    assert (mixed["trial"], mixed["confirmed"], mixed["spread"]) == (3, 95.25, None)
    assert (four["trial"], four["confirmed"], four["seeds"]) == (2, None, None)


def test_configurations_that_only_params_tell_apart_are_not_mixed():
    member = searched(0, (1, 1, 1), 90.0, on_front=True, params='{"temperature.flat_until": 0.1}')
    same = {**confirming(0, 0, (1, 1, 1), 80.0), "params": '{"temperature.flat_until": 0.1}'}
    other = {**confirming(1, 1, (1, 1, 1), 99.0), "params": '{"temperature.flat_until": 0.4}'}
    table = search_against_confirmed(typed([member, same, other], RUN_COLUMNS))
    assert rows_of(table)[0]["confirmed"] == 80.0


def test_the_same_tables_come_from_the_csv_of_the_runs(runs, published, tables, tmp_path):
    write(runs, tmp_path / "runs.csv")
    again = read_runs(tmp_path / "runs.csv")
    shuffled = again.sample(frac=1.0, random_state=0)
    for table in [*paper_tables(shuffled, published), *own_tables(shuffled)]:
        assert to_markdown(table) == to_markdown(tables[table.name])


def test_no_runs_give_whole_tables(published):
    nothing = typed([], RUN_COLUMNS)
    found = paper_tables(nothing, published)
    assert {row["verdict"] for table in found for row in rows_of(table)} == {"not run"}
    for table in [*found, *own_tables(nothing)]:
        for render in RENDERERS.values():
            assert render(table)
    assert "Nothing was measured for this table yet." in to_markdown(best_schedules(nothing))


def test_references_keep_their_digits():
    text = to_markdown(references_table(read_references(REPOSITORY / "results" / "paper")))
    assert re.search(r"ReSTE +\| resnet20 .*\| +86\.75 \|", text)
    assert re.search(r"ReCU +\| resnet20 .*\| +88\.0 \| fine-tuned", text)


# Rendering.

HOSTILE = "<script>alert('x')</script> a|b * _c_ `d` 50 % & $1 #2 \\end{document} ~^ [e] --"


@pytest.fixture
def hostile() -> Table:
    columns = (
        Column("name", "Name | x"),
        Column("value", "Value", "right", 2, signed=True, spread="spread"),
        Column("spread", where="csv"),
    )
    rows = ((HOSTILE, -0.004, 0.126), ("[x]\nsecond line", -1.5, None), ("漢字 é", None, None))
    return Table("hostile", HOSTILE, columns, rows, (HOSTILE,))


def test_numbers_have_a_real_minus_a_sign_and_no_minus_zero(hostile):
    assert [row[1] for row in hostile.cells()] == ["0.00 ± 0.13", MINUS + "1.50", ""]


def test_markdown_columns_are_aligned_and_cells_stay_cells(hostile, tables):
    for table in [hostile, *tables.values()]:
        lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
        assert len({len(line) for line in lines}) == 1
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(table.shown()) + 1}
    assert r"\<script>" in to_markdown(hostile)
    assert r"\_c\_ \`d\`" in to_markdown(hostile)


def test_csv_holds_bare_numbers(hostile, tables):
    rows = list(csv.DictReader(io.StringIO(to_csv(hostile))))
    assert rows[0] == {"name": HOSTILE, "value": "-0.004", "spread": "0.126"}
    assert rows[1]["name"] == "[x]\nsecond line"
    frame = pd.read_csv(io.StringIO(to_csv(tables["table1"])))
    assert frame["measured_test_accuracy"].dtype == "float64"
    assert frame.loc[0, "measured_test_accuracy"] == pytest.approx(92.2333333, abs=1e-6)
    assert len(frame) == 20


def test_html_is_well_formed_and_runs_nothing(hostile, tables):
    for table in [hostile, *tables.values()]:
        open_tags: list[str] = []
        texts: list[str] = []

        class Reader(HTMLParser):
            def handle_starttag(self, tag, attrs, open_tags=open_tags):
                open_tags.append(tag)
                assert tag in {"table", "thead", "tbody", "tr", "th", "td", "ul", "li"}

            def handle_endtag(self, tag, open_tags=open_tags):
                assert open_tags.pop() == tag

            def handle_data(self, data, texts=texts):
                texts.append(data)

        Reader().feed(to_html(table))
        assert open_tags == []
        shown = [cell for row in table.cells() for cell in row if cell]
        assert not shown or [text for text in texts if text in shown and text.strip()]
    assert HOSTILE not in to_html(hostile)


def latex_rows(text: str) -> list[str]:
    body = text.split("\\endfoot\n")[1].split("\\end{longtable}")[0]
    return [line for line in body.splitlines() if line.endswith(r"\\")]


def test_latex_is_a_document_of_balanced_parts(hostile, tables):
    for table in [hostile, *tables.values()]:
        text = to_latex(table)
        assert text.startswith("\\documentclass")
        assert text.endswith("\\end{document}\n")
        assert text.count("\\end{document}") == 1
        bare = re.sub(r"\\[\\{}$&]", "", text)
        assert bare.count("{") == bare.count("}")
        assert bare.count("$") % 2 == 0
        begun, ended = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
        assert sorted(begun) == sorted(ended)
        for row in latex_rows(text):
            assert len(re.findall(r"(?<!\\)&", row)) == len(table.shown()) - 1
        assert text.isascii() or "é" in text
        assert len(latex_rows(text)) == len(table.rows)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles_on_its_own(hostile, tables, tmp_path):
    for path in write_tables([hostile, tables["table1"], tables["front"]], tmp_path):
        if path.suffix == ".tex":
            command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", path.name]
            subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)


def test_latex_escapes_what_it_would_obey(hostile):
    first, second, third = latex_rows(to_latex(hostile))
    assert r"\textless{}script\textgreater{}" in first
    assert r"50 \% \& \$1 \#2 \textbackslash{}end\{document\}" in first
    assert "-{}- " in first
    assert second == r"{[}x{]} second line & $-$1.50 \\"
    assert third == r"?? é &  \\"


def test_rules_part_the_groups(tables):
    text = to_latex(tables["table1"])
    assert text.count("\\midrule") == 1 + sum(tables["table1"].breaks()) == 1 + 12
    assert to_html(tables["table1"]).count('<tr class="rule">') == 12


def test_every_format_is_as_the_golden_files(tables, tmp_path):
    chosen = [
        tables[name] for name in ("table1", "sbn", "vdsr", "schedules", "front", "confirmed")
    ]
    chosen += [tables["uniform"], tables["schedules_found"]]
    if os.environ.get("SLB_WRITE_GOLDEN"):
        write_tables(chosen, GOLDEN)
    written = write_tables(chosen, tmp_path / "new" / "folder")
    assert {path.name for path in written} == {path.name for path in GOLDEN.iterdir()}
    for path in written:
        assert path.read_bytes() == (GOLDEN / path.name).read_bytes(), path.name


def method_runs(name: str, values: list[float], **changes: Any) -> list[dict[str, Any]]:
    """Invented test values of a method at 1/1, a seed a value."""
    alone = {"schedule": "", "T_s": None, "T_e": None, "norm": ""} if name != "slb" else {}
    size = {"study": "duel", "size_bytes": 4360}
    return paper_runs("duel", values, method=name, **{**size, **alone, **changes})


def duel(*groups: list[dict[str, Any]]) -> Table:
    return methods_table(typed([run for group in groups for run in group], RUN_COLUMNS))


def test_methods_are_sorted_by_their_mean_and_say_how_far_behind_they_are() -> None:
    table = duel(
        method_runs("dorefa", [80.0, 82.0, 84.0]),
        method_runs("slb", [86.0, 87.0, 88.0]),
        method_runs("slb", [70.0, 71.0, 72.0], T_e=1000.0),
        method_runs("lsq", [90.0, 91.0, 92.0]),
        method_runs("float", [95.0], weight_bits="32", activation_bits="32"),
    )
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
    assert [(r["bits"], r["method"], r["setting"]) for r in rows] == [
        ("1/1", "lsq", ""),
        ("1/1", "slb", "exp 0.01 to 10"),
        ("1/1", "dorefa", ""),
        ("1/1", "slb", "exp 0.01 to 1000"),
        ("32/32", "float", ""),
    ]
    assert [r["behind"] for r in rows] == [0, -4, -9, -20, 0]
    assert rows[0]["spread"] == pytest.approx(1.0)
    assert rows[2]["seeds"] == 3
    sentence = "duel, 1/1: SLB (exp 0.01 to 10), 87.00, does not win: one method is ahead of it, "
    assert sentence + "lsq, 91.00, by 4.00." in table.notes


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ([92.0, 93.0, 94.0], "wins: 2.00 ahead of lsq, 91.00."),
        ([90.0, 92.0, 94.0], "does not win: it is level with lsq, 91.00, within two standard"),
        ([93.0], "is 2.00 ahead of lsq, 91.00; one seed cannot say more."),
        ([88.0], "is 3.00 behind lsq, 91.00; one seed cannot say more."),
    ],
)
def test_the_table_says_plainly_whether_slb_wins(ours: list[float], words: str) -> None:
    table = duel(method_runs("slb", ours), method_runs("lsq", [90.0, 91.0, 92.0]))
    assert any(words in note for note in table.notes), table.notes


def test_a_method_alone_is_no_comparison() -> None:
    assert duel(method_runs("slb", [90.0]), method_runs("slb", [91.0], T_e=5.0)).rows == ()
