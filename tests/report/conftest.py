"""An invented study, and Chromium for the tests of its page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slb_autotune.analysis.result import StudyResult
from slb_autotune.report.page import PageContent, render_page
from tests.report.browser import Page
from tests.report.invented import invented_page, invented_study


@pytest.fixture(scope="session")
def study() -> StudyResult:
    """Sixty trials with a front, uniform allocations, stopped and failed ones."""
    return invented_study()


@pytest.fixture(scope="session")
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
def page(show: Callable[[PageContent], Page], study: StudyResult) -> Page:
    return show(invented_page(study))
