# SPDX-License-Identifier: Apache-2.0
"""The documentation site builds without a warning, is complete and loads nothing from elsewhere."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from pytriton.tools.commands.table import ROWS, Group
from tests.docs.site_pages import broken_links, is_outside, read_site
from tests.e2e.waiting import eventually

REPOSITORY = pathlib.Path(__file__).parents[2]
BUILD_TIMEOUT_S = 300
CHROMIUM = pathlib.Path("/usr/bin/chromium")
DRIVER = pathlib.Path("/usr/bin/chromedriver")
BROWSER_OPTIONS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
    *("disable-background-networking", "disable-component-update", "disable-sync"),
)

pytest.importorskip("mkdocs", reason="the documentation site needs mkdocs: pip install '.[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert built.returncode == 0, built.stdout
    assert [line for line in built.stdout.splitlines() if not line.startswith("INFO")] == []
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return read_site(site)


def test_site_has_a_page_for_every_document(site):
    documents = [path.relative_to(REPOSITORY / "docs") for path in REPOSITORY.glob("docs/**/*.md")]

    assert [path for path in documents if not (site / path.with_suffix(".html")).exists()] == []


def test_links_and_anchors_of_the_site_lead_somewhere(site, pages):
    assert broken_links(site, pages) == []


def test_pages_load_nothing_from_another_host(pages):
    outside = {address for page in pages.values() for address in page.assets if is_outside(address)}

    assert outside == set()


def test_style_sheets_load_nothing_from_another_host(site):
    texts = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    loaded = {address for text in texts for address in re.findall(r"url\(['\"]?([^)'\"]+)", text)}

    assert {address for address in loaded if is_outside(address)} == set()


def test_reference_has_the_public_names(site):
    named = {
        "server": ["Triton", "RemoteTriton", "TritonConfig"],
        "model_config": ["ModelConfig", "Tensor", "DynamicBatcher"],
        "decorators": ["batch", "model"],
        "clients": ["ModelClient", "AsyncioDecoupledModelClient"],
        "testing": ["ModelHarness"],
        "inprocess": ["Server", "Options"],
        "pb_utils": ["InferenceRequest", "get_input_tensor_by_name"],
    }
    missing = [
        f"{page}: {name}"
        for page, names in named.items()
        for name in names
        if f".{name}" not in (site / f"reference/{page}.html").read_text(encoding="utf-8")
    ]

    assert missing == []


def test_page_of_commands_has_the_help_of_each(site):
    text = (site / "reference/commands.html").read_text(encoding="utf-8")
    names = [row.name for row in ROWS if row.group is not Group.CHECK]

    assert [name for name in names if f"usage: pytriton {name}" not in text] == []
    assert "--model-repository" in text


def test_search_index_finds_every_tab(site):
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}

    assert len(found) >= len(list(REPOSITORY.glob("docs/*.md")))
    assert any("decoupled" in entry["text"] for entry in index["docs"])


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver")
    if not all(map(pathlib.Path.exists, (CHROMIUM, DRIVER))):
        pytest.skip(f"there is no {CHROMIUM} with {DRIVER}; see scripts/setup-tools")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    profile = tmp_path_factory.mktemp("profile")
    for option in (*BROWSER_OPTIONS, f"user-data-dir={profile}", "window-size=1280,900"):
        options.add_argument(f"--{option}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


def test_site_can_be_searched_and_switched_to_dark_without_a_server(site, browser):
    browser.get((site / "guides/bind.html").as_uri())

    browser.find_element("css selector", "input.md-search__input").send_keys("decoupled")
    assert eventually(lambda: browser.find_elements("css selector", ".md-search-result__item"))
    before = browser.find_element("tag name", "body").get_attribute("data-md-color-scheme")
    browser.execute_script(
        "document.querySelector(`label.md-header__button[for^='__palette']:not([hidden])`).click()"
    )

    assert eventually(
        lambda: (
            browser.find_element("tag name", "body").get_attribute("data-md-color-scheme") != before
        )
    )
    assert browser.get_log("browser") == []
