"""The page of a study in a browser: the chart, the chosen trial, the list and the axes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slb_autotune.analysis.result import StudyResult
from tests.report.invented import invented_page, invented_result

pytestmark = pytest.mark.slow  # a browser takes seconds to start


def of_metrics(study: StudyResult, *metrics: str) -> StudyResult:
    """The same trials, searched for other objectives."""
    return invented_result(study.trials, study.epochs, metrics)


# -- what a reader sees -----------------------------------------------------------------------


def test_it_loads_without_an_error_and_asks_for_nothing_else(page):
    assert page.requests() == {page.path.as_uri()}
    assert page.text("h1") == "invented"
    assert "End temperatures between 100 and 400" in page.text("#answer")
    assert page.js("document.querySelector('#figures img').naturalWidth") > 0
    assert page.text("#tables td") == "SLB 1/32"


def test_the_policy_stops_scripts_and_requests(page):
    code = "document.body.append(Object.assign(document.createElement('{}'), {}))"
    page.js(code.format("script", "{textContent: 'window.hacked = 1'}"))
    page.js(code.format("img", "{src: 'http://127.0.0.1:9/x.png'}"))
    assert page.js("window.hacked") is None
    refused = [line for line in page.complaints() if "Content Security Policy" in line]
    assert len(refused) == 2


def test_every_measured_trial_has_a_point_and_the_front_is_joined(page, study):
    runs = study.trials
    measured = set(runs.index[runs["val_accuracy"].notna()])
    points = page.js("[...document.querySelectorAll('#plot .point')].map(p => +p.dataset.row)")
    assert set(points) == measured
    assert len(points) == len(measured)
    best = runs[runs["on_front"]]
    assert page.count("#plot .best") == len(best)
    corners = page.find(".steps:not(.faint)").get_attribute("d").count("H") + 1
    assert corners == len(best.drop_duplicates(["val_accuracy", "size_bytes"]))
    assert page.count("#plot .hollow") == (runs["status"] == "stopped").sum()
    one_width = (runs["weight_bits"] != "mixed") & (runs["source"] != "paper")
    assert page.count("#plot .uniform") == (one_width & runs["val_accuracy"].notna()).sum()
    assert page.count("#plot .paper") == 1
    assert f"{len(runs) - len(measured)} of {len(runs)} trials" in page.text("#plot-hint")


def test_hovering_a_point_shows_its_configuration(page, study):
    page.hover(3)
    tip = page.text("#tip")
    assert "Trial 3" in tip
    assert "paper" in tip
    assert "0.01 → 1,000" in tip
    page.find('.point[data-row="3"]').send_keys("\ue00c")
    assert not page.find("#tip").is_displayed()


def test_a_click_on_a_point_marks_its_row_and_fills_the_panel(page, study):
    page.find('.point[data-row="2"]').click()
    assert page.marked() == [2]
    assert page.text("#details h3") == "Trial 2"
    assert page.count("#details .bits") == 18
    assert page.count("#details .curve") == 3
    box, row = (
        page.js(f"{part}.getBoundingClientRect()")
        for part in (
            "document.getElementById('box')",
            "document.querySelector('tr[data-row=\"2\"]')",
        )
    )
    assert box["top"] <= row["top"]
    assert row["bottom"] <= box["bottom"]
    assert page.find('.point[data-row="2"]').get_attribute("aria-pressed") == "true"


def test_the_keyboard_does_the_same(page, study):
    page.js("document.getElementById('zoom').focus()")
    page.press("\ue004")
    first = page.js("document.activeElement.dataset.row")
    assert first is not None
    page.press("\ue012")
    page.press("\ue012")
    there = page.js("document.activeElement.dataset.row")
    assert there != first
    assert page.find("#tip").is_displayed()
    page.press("\ue007")
    assert page.marked() == [int(there)]
    assert page.text("#details h3") == f"Trial {study.trials['trial'][int(there)]}"


def test_up_and_down_go_along_the_front(page, study):
    runs = study.trials
    best = runs[runs["on_front"]].sort_values("size_bytes").index.tolist()
    page.js(f"document.querySelector('.point[data-row=\"{best[0]}\"]').focus()")
    passed = []
    for _ in best:
        passed.append(int(page.js("document.activeElement.dataset.row")))
        page.press("\ue013")
    assert passed == best


def test_a_row_of_the_list_chooses_by_keyboard_too(page):
    page.js("document.querySelector('tr[data-row=\"5\"] button').focus()")
    page.press("\ue007")
    assert page.marked() == [5]
    assert page.text("#details h3") == "Trial 5"


def test_rungs_that_start_anew_are_pale_and_rungs_that_continue_are_one_line(show, study):
    epochs = study.epochs
    page = show(invented_page(study))
    page.find('.point[data-row="0"]').click()
    assert page.js("document.querySelector('.curve').querySelectorAll('.line.pale').length") == 2
    last = epochs[epochs["rung"] == 2].assign(rung=lambda e: (e["epoch"] > 3).astype("Int64"))
    page = show(invented_page(replace(study, epochs=last)))
    page.find('.point[data-row="0"]').click()
    assert page.count("#details .line.pale") == 0
    assert page.count("#details .curve") == 3


# -- the list ---------------------------------------------------------------------------------


def test_sorting_by_a_header_puts_missing_values_last(page, study):
    runs = study.trials
    header = page.find('th[data-key="val_accuracy"]')
    assert header.get_attribute("aria-sort") == "descending"
    header.find_element("css selector", "button").send_keys("\ue007")
    assert header.get_attribute("aria-sort") == "ascending"
    by_value = runs.sort_values("val_accuracy", na_position="last", kind="stable")
    assert page.shown() == by_value.index.tolist()
    page.find('th[data-key="T_e"] button').click()
    assert header.get_attribute("aria-sort") is None
    assert page.shown() == runs.sort_values("T_e", kind="stable").index.tolist()


QUERIES = {
    "T_e>100": "T_e > 100",
    "t_e >= 100 lr<0.05": "T_e >= 100 and lr < 0.05",
    "schedule=exp size<12k": "schedule == 'exp' and size_bytes < 12000",
    "size<12": "size_bytes < 12000",
    "size_bytes<12000": "size_bytes < 12000",
    "accuracy<=80": "val_accuracy <= 80",
    "weight_bits=1": "weight_bits == '1'",
    "status!=done": "status != 'done'",
    "uniform": "source.str.startswith('uniform')",
    "the loss was": "status == 'failed'",
}


def test_the_filter_keeps_what_a_query_keeps(page, study):
    runs = study.trials
    for words, query in QUERIES.items():
        expected = runs.query(query).index
        assert 0 < len(expected) < len(runs)
        page.filter(words)
        assert set(page.shown()) == set(expected), words
        assert page.text("#found") == f"{len(expected)} of {len(runs)} trials."


def test_status_and_front_are_filters_too(page, study):
    runs = study.trials
    page.choose("#status", "stopped")
    assert set(page.shown()) == set(runs.index[runs["status"] == "stopped"])
    page.choose("#status", "all")
    page.find("#only-front").click()
    assert set(page.shown()) == set(runs.index[runs["on_front"]])


def test_a_filter_that_cannot_be_understood_is_told(page, study):
    page.filter("speed>3")
    assert page.text("#found").endswith("There is no column speed.")
    page.filter("T_e>hot")
    assert page.text("#found").endswith("hot is not a number.")
    assert len(page.shown()) == len(study.trials)


def test_columns_can_be_chosen(page):
    assert page.count('th[data-key="seconds"]') == 0
    page.find(".menu summary").click()
    page.find('.menu input[value="seconds"]').click()
    page.find('.menu input[value="weight_bits/layer1.*"]').click()
    page.find('.menu input[value="T_e"]').click()
    assert page.text('th[data-key="seconds"]') == "Time, s"
    assert page.text('th[data-key="weight_bits/layer1.*"]') == "bits layer1.*"
    assert page.count('th[data-key="T_e"]') == 0
    page.press("\ue00c")
    assert not page.find(".menu fieldset").is_displayed()


# -- axes -------------------------------------------------------------------------------------


def test_sizes_that_differ_much_get_a_log_axis(show, study):
    runs = study.trials
    assert "log scale" not in show(invented_page(study)).text("#plot svg")
    wide = runs.assign(size_bytes=(runs["size_bytes"] * (1 + runs["trial"] % 50)).astype("Int64"))
    page = show(invented_page(replace(study, trials=wide)))
    assert "log scale" in page.text("#plot svg")
    assert page.find("#log-x").is_selected()
    page.find("#log-x").click()
    assert "log scale" not in page.text("#plot svg")


def test_zoom_leaves_out_what_is_far_from_the_front(page):
    before = page.count("#plot .point")
    page.find("#zoom").click()
    after = page.count("#plot .point")
    assert 0 < after < before
    assert f"{before - after} of {before} points are outside" in page.text("#plot-hint")


def test_any_metric_can_be_an_axis_and_is_then_under_the_pointer(page, study):
    page.choose("#axis-x", "Gap, mean |W_q - W_c|")
    page.hover(3)
    gap = study.trials["quantization_gap"][3]
    assert f"Gap, mean |W_q - W_c|\n{gap:.4g}" in page.text("#tip")
    assert page.count("#plot .point") == study.trials["quantization_gap"].notna().sum()


def test_three_objectives_can_each_be_an_axis(show, study):
    page = show(invented_page(of_metrics(study, "val_accuracy", "size_bytes", "bitops")))
    assert page.text("#plot svg").count("is better") == 2
    page.choose("#axis-x", "Bit operations")
    assert "Bit operations, M" in page.text("#plot svg")
    assert page.count('th[data-key="bitops"]') == 1


def test_one_objective_is_drawn_over_the_trials(show, study):
    runs = study.trials
    page = show(invented_page(of_metrics(study, "val_accuracy")))
    assert page.js("document.getElementById('axis-x').value") == "trial"
    done = runs[runs["status"] == "done"]["val_accuracy"]
    records = (done > done.cummax().shift(fill_value=-1)).sum()
    assert page.find(".steps:not(.faint)").get_attribute("d").count("H") + 1 == records
