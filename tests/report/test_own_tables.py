"""Our own tables from invented runs."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from slb_autotune.analysis.comparisons import layers_text
from slb_autotune.analysis.result import StudyResult
from slb_autotune.analysis.tables import RUN_COLUMNS, typed
from slb_autotune.report.own_tables import (
    confirmed_table,
    front_table,
    methods_table,
    own_tables,
    schedules_table,
    uniform_table,
)
from slb_autotune.report.table import RENDERERS, Table, to_csv, to_markdown
from tests.report.invented import invented_result
from tests.report.table_runs import (
    INVENTED,
    SEARCH,
    confirming,
    paper_runs,
    results_of,
    rows_of,
    searched,
)


@pytest.fixture(scope="module")
def results() -> list[StudyResult]:
    return results_of(INVENTED)


def test_best_schedules_against_a_slow_look(results):
    found = [row for row in rows_of(schedules_table(results)) if row["data"] == "digits"]
    mixed, one, two, four = sorted(found, key=lambda row: -row["trials"])
    assert (mixed["value"], mixed["T_e"], mixed["lr"], mixed["trials"]) == (94.5, 250.0, 0.05, 2)
    assert mixed["value"] == max(row["val_accuracy"] for row in SEARCH[3:5])
    assert [row["bits"] for row in (one, two, four)] == ["1/32", "2/32", "4/32"]
    assert {(row["epochs"], row["train_images"]) for row in (mixed, one, two, four)} == {(8, 1617)}
    assert mixed["network"] == "resnet20, width 8"


def test_trials_of_other_budgets_are_not_compared():
    rows = [searched(0, (1, 1, 1), 90.0), searched(1, (1, 1, 1), 95.0, epochs=80)]
    found = rows_of(schedules_table(results_of(rows)))
    assert sorted((row["epochs"], row["value"], row["trials"]) for row in found) == [
        (8, 90.0, 1),
        (80, 95.0, 1),
    ]


def test_a_reused_trial_is_not_compared_twice():
    rows = [searched(0, (1, 1, 1), 90.0), searched(1, (1, 1, 1), 90.0, status="reused")]
    (row,) = rows_of(schedules_table(results_of(rows)))
    assert (row["trials"], row["run"]) == (1, "invented_search:0")


def test_the_front_is_ordered_by_size_and_shows_every_layer(results):
    rows = rows_of(front_table(results))
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


def test_search_against_uniform_is_the_slow_hypervolume(results):
    (row,) = rows_of(uniform_table(results))
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
    (row,) = rows_of(uniform_table(results_of(rows)))
    assert (row["epochs"], row["train_images"]) == ("8 to 80", 1617)


def test_the_reference_point_and_the_hypervolume_are_the_studys(results):
    (search,) = [result for result in results if result.name == "invented_search"]
    (row,) = rows_of(uniform_table(results))
    assert row["hypervolume"] == search.hypervolume
    assert search.reference == (0.0, 24_000.0)
    moved = replace(search, reference=(50.0, 12_000.0))
    (row,) = rows_of(uniform_table([moved]))
    uniform = [(r["val_accuracy"] - 50, r["size_bytes"]) for r in SEARCH[:3]]
    expected = area(uniform, (0, 12_000)) / (50 * 12_000)
    assert row["hypervolume_uniform"] == pytest.approx(expected)
    assert row["reference"] == "50, 12,000"


def test_what_breaks_a_constraint_is_no_result():
    frame = typed(SEARCH, RUN_COLUMNS)
    (row,) = rows_of(uniform_table([invented_result(frame, constraints=["size_bytes <= 5 kB"])]))
    assert (row["results"], row["uniform_results"]) == (3, 1)


def test_a_third_objective_has_a_column_in_its_unit():
    rows = [{**row, "bitops": 2.5e6 + row["trial"]} for row in SEARCH]
    frame = typed(rows, RUN_COLUMNS)
    table = front_table([invented_result(frame, metrics=("val_accuracy", "size_bytes", "bitops"))])
    assert "Bit operations (M)" in to_markdown(table)
    assert rows_of(table)[0]["shown_bitops"] == 2.5
    assert "2500000" in to_csv(table)


def test_a_study_of_uniform_bits_alone_is_left_out():
    rows = [searched(0, (1, 1, 1), 90.0), searched(1, (2, 2, 2), 95.0)]
    assert uniform_table(results_of(rows)).rows == ()


def test_confirmed_values_stand_beside_what_the_search_saw(results):
    one, mixed, four = rows_of(confirmed_table(results))
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
    table = confirmed_table(results_of([member, same, other]))
    assert rows_of(table)[0]["confirmed"] == 80.0


def test_the_order_of_studies_and_runs_does_not_matter(results):
    mixed = [
        replace(result, trials=result.trials.sample(frac=1.0, random_state=0))
        for result in reversed(results)
    ]
    for one, other in zip(own_tables(results), own_tables(mixed), strict=True):
        assert to_markdown(one) == to_markdown(other)


def test_no_runs_give_whole_tables():
    for table in own_tables([]):
        assert table.rows == ()
        for render in RENDERERS.values():
            assert render(table)
    assert "Nothing was measured for this table yet." in to_markdown(schedules_table([]))


def method_runs(name: str, values: list[float], **changes: Any) -> list[dict[str, Any]]:
    """Invented test values of a method at 1/1, one seed per value."""
    alone = {"schedule": "", "T_s": None, "T_e": None, "norm": ""} if name != "slb" else {}
    size = {"study": "duel", "size_bytes": 4360}
    return paper_runs("duel", values, method=name, **{**size, **alone, **changes})


def duel(*groups: list[dict[str, Any]]) -> Table:
    return methods_table(results_of(run for group in groups for run in group))


def test_methods_are_sorted_by_their_mean_and_say_how_far_behind_they_are() -> None:
    table = duel(
        method_runs("dorefa", [80.0, 82.0, 84.0]),
        method_runs("slb", [86.0, 87.0, 88.0]),
        method_runs("slb", [70.0, 71.0, 72.0], T_e=1000.0),
        method_runs("lsq", [90.0, 91.0, 92.0]),
        method_runs("float", [95.0], weight_bits="32", activation_bits="32"),
    )
    rows = rows_of(table)
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
