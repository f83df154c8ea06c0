"""The page of a study in a browser: studies of other kinds, themes, widths and paper."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from slb_autotune.analysis.tables import RUN_COLUMNS, typed
from slb_autotune.report.page import render_page
from tests.report.browser import background, wait_for
from tests.report.invented import invented_page, invented_result, invented_study

pytestmark = pytest.mark.slow  # a browser takes seconds to start

HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'>"
    "\u2028&\"'{{7*7}}"
)


# -- studies of other kinds -------------------------------------------------------------------


def test_psnr_studies_show_psnr(show):
    page = show(invented_page(invented_study(30, 6, "val_psnr")))
    assert "Validation PSNR, dB" in page.text("#plot svg")
    page.find('.point[data-row="1"]').click()
    assert "Validation PSNR, dB" in page.text("#details .curve")
    assert page.text("#details dd").endswith("dB")
    assert "Dashed" not in page.text("#details"), "W_c has no PSNR"


def test_a_study_without_trials_says_so(show):
    content = invented_page(
        invented_result(typed([], RUN_COLUMNS)),
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
    failed = study.trials[study.trials["status"] == "failed"]
    page = show(invented_page(invented_result(failed)))
    assert page.text("#plot") == "Every trial failed; the list below says why."
    assert page.text("td.cell-reason").startswith("the loss was nan")
    page.find("tr[data-row='0'] button").click()
    assert "the loss was nan" in page.text("#details .reason")
    assert "No epoch of this trial" in page.text("#details")


def test_a_single_trial_is_drawn(show, study):
    runs, epochs = study.trials, study.epochs
    page = show(invented_page(invented_result(runs[:1], epochs[epochs["trial"] == 0])))
    assert page.count("#plot .point") == 1


def test_hostile_strings_are_shown_and_never_run(show, study):
    runs = study.trials.copy()
    words = ["reason", "source", "schedule", "network", "machine", "command"]
    runs.loc[0, words] = HOSTILE
    runs.loc[0, "status"] = "failed"
    runs.loc[0, "bits"] = json.dumps({HOSTILE: 2})
    runs.loc[0, "params"] = json.dumps({HOSTILE: HOSTILE})
    texts = {key: [HOSTILE] for key in ("answer", "reproduce", "notes")}
    config = study.config.model_copy(update={"name": HOSTILE})
    content = invented_page(
        replace(study, trials=runs, config=config),
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
    large = invented_study(500, 40)
    content = invented_page(large)
    assert len(large.epochs) >= 500 * 40
    assert len(render_page(content).encode()) < 6_000_000
    page = show(content)
    assert len(page.shown()) == 500


# -- themes, widths, paper --------------------------------------------------------------------


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
