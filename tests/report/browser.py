"""A page in a real browser, and what a person would do with it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


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


def background(page: Page) -> str:
    """The colour of the page's paper."""
    return str(page.js("getComputedStyle(document.body).backgroundColor"))
