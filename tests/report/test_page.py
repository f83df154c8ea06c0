"""The page of a study, in a real browser."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from slb_autotune.analysis.tables import EPOCH_COLUMNS, RUN_COLUMNS, typed
from slb_autotune.errors import ConfigError
from slb_autotune.report.page import PageContent, payload, render_page
from tests.report.invented import invented_page, invented_study

TWO = {"val_accuracy": "maximize", "size_bytes": "minimize"}
HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'>"
    "\u2028&\"'{{7*7}}"
)


@pytest.fixture(scope="module")
def study() -> tuple[pd.DataFrame, pd.DataFrame]:
    return invented_study()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium with its chromedriver was found")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    yield chrome
    chrome.quit()


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until something holds, for five seconds at most."""
    deadline = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


class Page:
    """A page in the browser, and what a person would do with it."""

    def __init__(self, chrome: Any, path: Path) -> None:
        self.chrome, self.path = chrome, path
        self.resize(1280)
        self.emulate()
        chrome.get_log("browser"), chrome.get_log("performance")
        chrome.get(path.as_uri())
        self.wait_until_loaded()

    def reload(self) -> None:
        self.js("(window.old = true)")
        self.chrome.refresh()
        self.wait_until_loaded()

    def wait_until_loaded(self) -> None:
        """On a busy machine the driver returns before the page is there and its script has run."""
        wait_for(lambda: self.js("!window.old && document.readyState === 'complete'"))

    def resize(self, width: int) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def emulate(self, media: str = "", scheme: str = "light") -> None:
        chosen = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in chosen.items()]
        command = {"media": media, "features": features}
        self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", command)

    def js(self, code: str, *arguments: Any) -> Any:
        return self.chrome.execute_script(f"return {code}", *arguments)

    def find(self, selector: str) -> Any:
        return self.chrome.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return str(self.find(selector).text)

    def count(self, selector: str) -> int:
        return len(self.chrome.find_elements("css selector", selector))

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.chrome).send_keys(*keys).perform()

    def hover(self, row: int) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.chrome).move_to_element(self.find(f'.point[data-row="{row}"]')).perform()

    def choose(self, selector: str, name: str) -> None:
        from selenium.webdriver.support.ui import Select

        Select(self.find(selector)).select_by_visible_text(name)

    def filter(self, words: str) -> None:
        field = self.find("#filter")
        field.clear()
        field.send_keys(words)

    def shown(self) -> list[int]:
        """The rows of the list that can be seen, in its order."""
        code = (
            "[...document.querySelectorAll('#table tbody tr')]"
            ".filter(tr => !tr.classList.contains('out')).map(tr => Number(tr.dataset.row))"
        )
        return list(self.js(code))

    def marked(self) -> list[int]:
        return list(
            self.js(
                "[...document.querySelectorAll('tr[aria-current]')].map(tr => +tr.dataset.row)"
            )
        )

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.chrome.get_log("browser")]

    def requests(self) -> set[str]:
        entries = [json.loads(e["message"])["message"] for e in self.chrome.get_log("performance")]
        urls = {
            entry["params"]["request"]["url"]
            for entry in entries
            if entry["method"] == "Network.requestWillBeSent"
        }
        return {url for url in urls if not url.startswith("data:")}


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[[PageContent], Page]]:
    pages: list[Page] = []

    def open_page(content: PageContent) -> Page:
        path = tmp_path / "page.html"
        path.write_text(render_page(content), encoding="utf-8")
        pages.append(Page(browser, path))
        return pages[-1]

    yield open_page
    browser.switch_to.default_content()
    storage = {"origin": "file://", "storageTypes": "local_storage"}
    browser.execute_cdp_cmd("Storage.clearDataForOrigin", storage)
    for page in pages:
        assert page.complaints() == []


@pytest.fixture
def page(show: Callable[[PageContent], Page], study: tuple[pd.DataFrame, pd.DataFrame]) -> Page:
    return show(invented_page(*study))


# -- what is written --------------------------------------------------------------------------


def test_the_same_input_gives_the_same_bytes(study):
    again = invented_study()
    assert render_page(invented_page(*study)) == render_page(invented_page(*again))


def test_curves_stand_in_the_order_of_the_runs(study):
    runs, epochs = study
    mixed = runs.sample(frac=1, random_state=1), epochs.sample(frac=1, random_state=2)
    found = payload(invented_page(*mixed))
    start = 0
    for place, trial in enumerate(found["runs"]["trial"]):
        own = epochs[epochs["trial"] == trial].sort_values(["rung", "epoch"])
        end = start + found["epoch_counts"][place]
        for name in ("rung", "epoch", "temperature", "val_accuracy", "quantization_gap"):
            expected = [pytest.approx(value, rel=1e-4) for value in own[name]]
            assert found["epochs"][name][start:end] == expected
        start = end
    assert start == len(epochs)


def test_missing_and_infinite_numbers_become_null():
    rows = [{"study": "s", "trial": 0, "val_loss": float("inf"), "T_e": 100.0}, {"lr": 0.125}]
    runs = payload(invented_page(typed(rows, RUN_COLUMNS), typed([], EPOCH_COLUMNS)))["runs"]
    assert "val_loss" not in runs
    assert (runs["trial"], runs["T_e"], runs["lr"]) == ([0, None], [100, None], [None, 0.125])


def test_searched_values_that_no_column_has_become_columns(study):
    found = payload(invented_page(*study))
    assert list(found["params"]) == [f"weight_bits/layer{stage}.*" for stage in (1, 2, 3)]


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        ({}, "a page shows one to 4 objectives; got 0"),
        ({"speed": "maximize"}, "an objective must be a number of the runs; got 'speed'"),
        ({"lr": "upwards"}, "got 'upwards'"),
    ],
)
def test_objectives_that_cannot_be_shown_are_refused(study, objectives, message):
    content = invented_page(*study)
    broken = PageContent(**{**vars(content), "objectives": objectives})
    with pytest.raises(ConfigError, match=message):
        render_page(broken)


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
    runs, _ = study
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
    assert page.text("#details h3") == f"Trial {study[0]['trial'][int(there)]}"


def test_up_and_down_go_along_the_front(page, study):
    runs, _ = study
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


def test_rungs_that_start_anew_are_pale_and_rungs_that_go_on_are_one_line(show, study):
    runs, epochs = study
    page = show(invented_page(runs, epochs))
    page.find('.point[data-row="0"]').click()
    assert page.js("document.querySelector('.curve').querySelectorAll('.line.pale').length") == 2
    last = epochs[epochs["rung"] == 2].assign(rung=lambda e: (e["epoch"] > 3).astype("Int64"))
    page = show(invented_page(runs, last))
    page.find('.point[data-row="0"]').click()
    assert page.count("#details .line.pale") == 0
    assert page.count("#details .curve") == 3


# -- the list ---------------------------------------------------------------------------------


def test_sorting_by_a_header_puts_missing_values_last(page, study):
    runs, _ = study
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
    "accuracy<=80": "val_accuracy <= 80",
    "weight_bits=1": "weight_bits == '1'",
    "status!=done": "status != 'done'",
    "uniform": "source.str.startswith('uniform')",
    "the loss was": "status == 'failed'",
}


def test_the_filter_keeps_what_a_query_keeps(page, study):
    runs, _ = study
    for words, query in QUERIES.items():
        expected = runs.query(query).index
        assert 0 < len(expected) < len(runs)
        page.filter(words)
        assert set(page.shown()) == set(expected), words
        assert page.text("#found") == f"{len(expected)} of {len(runs)} trials."


def test_status_and_front_are_filters_too(page, study):
    runs, _ = study
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
    assert len(page.shown()) == len(study[0])


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
    runs, epochs = study
    assert "log scale" not in show(invented_page(runs, epochs)).text("#plot svg")
    wide = runs.assign(size_bytes=(runs["size_bytes"] * (1 + runs["trial"] % 50)).astype("Int64"))
    page = show(invented_page(wide, epochs))
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


def test_three_objectives_can_each_be_an_axis(show, study):
    page = show(invented_page(*study, objectives={**TWO, "bitops": "minimize"}))
    assert page.text("#plot svg").count("is better") == 2
    page.choose("#axis-x", "Bit-operations")
    assert "Bit-operations, billion" in page.text("#plot svg")
    assert page.count('th[data-key="bitops"]') == 1


def test_one_objective_is_drawn_over_the_trials(show, study):
    runs, epochs = study
    page = show(invented_page(runs, epochs, objectives={"val_accuracy": "maximize"}))
    assert page.js("document.getElementById('axis-x').value") == "trial"
    done = runs[runs["status"] == "done"]["val_accuracy"]
    records = (done > done.cummax().shift(fill_value=-1)).sum()
    assert page.find(".steps:not(.faint)").get_attribute("d").count("H") + 1 == records


# -- studies of other kinds -------------------------------------------------------------------


def test_psnr_studies_show_psnr(show):
    objectives = {"val_psnr": "maximize", "size_bytes": "minimize"}
    page = show(invented_page(*invented_study(30, 6, "val_psnr"), objectives=objectives))
    assert "Validation PSNR, dB" in page.text("#plot svg")
    page.find('.point[data-row="1"]').click()
    assert "Validation PSNR, dB" in page.text("#details .curve")
    assert page.text("#details dd").endswith("dB")
    assert "W_c" not in page.text("#details")


def test_a_study_without_trials_says_so(show):
    content = invented_page(
        typed([], RUN_COLUMNS),
        typed([], EPOCH_COLUMNS),
        answer=[],
        tables=[],
        figures=[],
        reproduce=[],
        notes=[],
        question="",
    )
    page = show(content)
    assert page.text("#plot") == "The study has no trials yet."
    assert page.text("#answer p") == "The study has no answer yet."
    assert page.text("#box") == "The study has no trials yet."
    assert page.count("#tables, #figures, #reproduce, #notes") == 0


def test_a_study_in_which_all_failed_shows_the_reasons(show, study):
    failed = study[0][study[0]["status"] == "failed"]
    page = show(invented_page(failed, typed([], EPOCH_COLUMNS)))
    assert page.text("#plot") == "Every trial failed; the list below says why."
    assert page.text("td.cell-reason").startswith("the loss was nan")
    page.find("tr[data-row='0'] button").click()
    assert "the loss was nan" in page.text("#details .reason")
    assert "No epoch of this trial" in page.text("#details")


def test_a_single_trial_is_drawn(show, study):
    runs, epochs = study
    page = show(invented_page(runs[:1], epochs[epochs["trial"] == 0]))
    assert page.count("#plot .point") == 1


def test_hostile_strings_are_shown_and_never_run(show, study):
    runs, epochs = study
    runs = runs.copy()
    words = ["reason", "source", "schedule", "network", "machine", "command"]
    runs.loc[0, words] = HOSTILE
    runs.loc[0, "status"] = "failed"
    runs.loc[0, "bits"] = json.dumps({HOSTILE: 2})
    runs.loc[0, "params"] = json.dumps({HOSTILE: HOSTILE})
    texts = {key: [HOSTILE] for key in ("answer", "reproduce", "notes")}
    content = invented_page(
        runs,
        epochs,
        study=HOSTILE,
        question=HOSTILE,
        **texts,
        tables=[(HOSTILE, "<table></table>")],
        figures=[(HOSTILE, "<svg/>")],
    )
    page = show(content)
    page.find("tr[data-row='0'] button").click()
    page.hover(1)
    time.sleep(0.1)
    assert page.js("window.hacked") is None
    assert page.requests() == {page.path.as_uri()}
    for selector in ("h1", ".question", "#notes li", "#reproduce code", "#details .reason"):
        assert page.js("document.querySelector(arguments[0]).textContent", selector) == HOSTILE
    assert page.js("document.title").startswith("</script>")
    assert page.js("document.querySelectorAll('script').length") == 2


def test_five_hundred_trials_of_forty_epochs_stay_under_six_megabytes(show):
    runs, epochs = invented_study(500, 40)
    content = invented_page(runs, epochs)
    assert len(epochs) >= 500 * 40
    assert len(render_page(content).encode()) < 6_000_000
    page = show(content)
    assert len(page.shown()) == 500


# -- themes, widths, paper --------------------------------------------------------------------


def background(page: Page) -> str:
    return str(page.js("getComputedStyle(document.body).backgroundColor"))


def test_dark_follows_the_system_until_the_reader_chooses(page):
    def chosen_and_remembered(colour: str) -> bool:
        """Choose, reload and look; a browser that reloads at once may lose what it should keep."""
        if background(page) != colour:
            page.find("#theme").click()
            wait_for(lambda: background(page) == colour)
            time.sleep(0.1)
        page.reload()
        return background(page) == colour

    light = background(page)
    page.emulate(scheme="dark")
    wait_for(lambda: page.find("#theme").get_attribute("aria-pressed") == "true")
    dark = background(page)
    assert dark != light
    wait_for(lambda: chosen_and_remembered(light))
    wait_for(lambda: chosen_and_remembered(dark))
    page.emulate(scheme="light")
    page.reload()
    assert background(page) == dark


def test_it_works_where_storage_and_clipboard_are_refused(page, tmp_path):
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe sandbox="allow-scripts" width=1200 height=800 src="{page.path.name}"></iframe>'
    )
    page.chrome.get(frame.as_uri())
    page.chrome.switch_to.frame(0)
    page.wait_until_loaded()
    with pytest.raises(Exception, match="sandboxed"):
        page.js("localStorage.length")
    light = background(page)
    page.find("#theme").click()
    assert background(page) != light
    page.js("document.querySelector('#reproduce .copy').focus()")
    page.press("\ue007")
    wait_for(lambda: page.text("#reproduce .copy") == "Press Ctrl+C")
    assert page.js("getSelection().toString()").startswith("slb-autotune search")
    page.chrome.switch_to.default_content()
    refused = [line for line in page.complaints() if "page.js" in line or "Uncaught" in line]
    assert refused == []


def test_a_command_is_copied(page):
    page.chrome.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
    )
    page.find("#reproduce .copy").click()
    wait_for(lambda: page.text("#reproduce .copy") == "Copied")
    assert page.text("#said") == "Copied."


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_enough_contrast(page, scheme):
    page.emulate(scheme=scheme)

    def luminance(name: str) -> float:
        page.js(f"document.body.style.setProperty('outline-color', 'var(--{name})')")
        text = page.js("getComputedStyle(document.body).outlineColor")
        parts = [int(part) / 255 for part in text[4:-1].split(",")]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    for ground in ("paper", "raised", "wash"):
        for text in ("ink", "soft"):
            assert contrast(text, ground) >= 4.5, (text, ground)
    assert contrast("front", "paper") >= 4.5
    for shape in ("uniform", "schedule", "other"):
        assert contrast(shape, "paper") >= 3, shape


def test_nothing_sticks_out_at_any_width(page):
    drawn = "document.querySelector('#plot svg').getBoundingClientRect().width"
    for width in (1280, 800, 400, 360):
        page.resize(width)
        wait_for(lambda w=width: page.js("innerWidth") == w and page.js(drawn) <= w)
        assert page.js("document.documentElement.scrollWidth") <= width


def test_on_paper_it_is_light_whole_and_without_controls(page, study):
    page.find("#theme").click()
    page.filter("T_e>1000")
    hidden = (
        "[...document.querySelectorAll('#table tbody tr')].filter(r => !r.offsetHeight).length"
    )
    assert page.js(hidden) > 0
    page.emulate(media="print")
    assert background(page) == "rgb(255, 255, 255)"
    assert page.js(hidden) == 0
    assert page.js("getComputedStyle(document.getElementById('box')).overflow") == "visible"
    for selector in ("#theme", "#axes", "#filters", "#reproduce .copy"):
        assert not page.find(selector).is_displayed()
