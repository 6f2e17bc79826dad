# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, driven by real clicks and keys."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.waiting import eventually

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
)
_LOGS = {"browser": "ALL", "performance": "ALL"}


class Browser:
    """One window; everything is found by CSS, and everything waits for what it expects."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._requests: list[str] = []
        self._console: list[str] = []

    def open(self, url: str, marker: str = "#status[data-state=live]") -> None:
        """Open a page afresh, and wait until it shows what the marker finds."""
        self.driver.get("about:blank")
        self.driver.get(url)
        self.see(marker)

    def all(self, css: str) -> list[Any]:
        return self.driver.find_elements("css selector", css)

    def see(self, css: str, text: str = "") -> Any:
        """The first visible element whose text has `text`, once it is there."""
        found: list[Any] = []

        def is_there() -> bool:
            script = """return [...document.querySelectorAll(arguments[0])].find((each) =>
                each.checkVisibility() && each.textContent.includes(arguments[1])) || null"""
            element = self.driver.execute_script(script, css, text)
            found[:] = [] if element is None else [element]
            return bool(found)

        problem = f"no {css} with {text!r} on:\n{self.text('body')[:3000]}"
        assert eventually(is_there), problem
        return found[0]

    def gone(self, css: str) -> None:
        assert eventually(lambda: not self.all(css)), f"{css} is still there"

    def click(self, css: str, text: str = "") -> None:
        def click(element: Any) -> None:
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            element.click()

        self._use(css, text, click)

    def write(self, css: str, text: str) -> None:
        def write(element: Any) -> None:
            element.clear()
            element.send_keys(text)

        self._use(css, "", write)

    def _use(self, css: str, text: str, use: Callable[[Any], None]) -> None:
        """Use an element, again if the page has replaced it meanwhile."""
        exceptions = importlib.import_module("selenium.common.exceptions")

        def is_used() -> bool:
            try:
                use(self.see(css, text))
            except exceptions.StaleElementReferenceException:
                return False
            return True

        assert eventually(is_used), f"{css} is replaced again and again"

    def press(self, *keys: str, held: str = "") -> None:
        """Press keys, wherever the focus is, while one is held."""
        chains = importlib.import_module("selenium.webdriver").ActionChains(self.driver)
        if held:
            chains.key_down(held).send_keys(*keys).key_up(held).perform()
        else:
            chains.send_keys(*keys).perform()

    def text(self, css: str) -> str:
        return self.run("return document.querySelector(arguments[0])?.textContent || ''", css)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def module(self, name: str, expression: str) -> Any:
        """The value of an expression over what a module of the page exports, as `it`."""
        script = f"""const done = arguments[arguments.length - 1];
            import(new URL('page/{name}', document.baseURI))
            .then((it) => done({{value: {expression}}}))
            .catch((error) => done({{error: String(error.message)}}))"""
        answer = self.driver.execute_async_script(script)
        return answer["value"] if "value" in answer else answer["error"]

    def replace(self, pattern: str, text: str) -> None:
        """Write a text in place of others, which differ in each run; for pictures."""
        script = """
            const main = document.querySelector("main"), pattern = new RegExp(arguments[0], "g");
            const walk = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
            while (walk.nextNode()) {
                walk.currentNode.data = walk.currentNode.data.replace(pattern, arguments[1]);
            }"""
        self.run(script, pattern, text)

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        values = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", values)

    def picture(self) -> bytes:
        return self.driver.get_screenshot_as_png()

    def requested(self) -> list[str]:
        """The addresses of all requests since the start."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self._requests.append(message["params"]["request"]["url"])
        return self._requests

    def console(self) -> list[str]:
        """What the page has complained about since the start."""
        self._console += complaints(self.driver)
        return self._console


def complaints(driver: Any) -> list[str]:
    """New lines of the console, without those of the pages that Chromium itself begins with."""
    lines = [entry["message"] for entry in driver.get_log("browser")]
    return [line for line in lines if not line.startswith("chrome://")]


@contextmanager
def started_browser(profile: Path, *flags: str) -> Iterator[Browser]:
    """Starts Chromium with more flags, or skips the tests that need it."""
    webdriver = pytest.importorskip("selenium.webdriver")
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for flag in (*_FLAGS, f"--user-data-dir={profile}", "--window-size=1280,900", *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", _LOGS)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
