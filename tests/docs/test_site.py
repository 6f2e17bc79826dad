# SPDX-License-Identifier: Apache-2.0
"""The documentation site builds without a warning, is complete and loads nothing from elsewhere."""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
import triton_python_backend_utils

from pytriton import decorators, inprocess, model_config, testing
from pytriton.tools.commands.table import ROWS, Group
from tests.e2e.waiting import eventually
from tests.page.browser import complaints

ASSETS = {"img": "src", "script": "src", "source": "src", "iframe": "src", "video": "src"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "manifest"}


@dataclass
class SitePage:
    """One page: the addresses that a browser loads with it, its links and its anchors."""

    path: pathlib.Path
    assets: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self, page: SitePage) -> None:
        super().__init__()
        self._page = page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._page.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self._page.links.append(values["href"])
        elif tag == "link" and LOADED_LINKS & set(values.get("rel", "").split()):
            self._page.assets.append(values["href"])
        elif ASSETS.get(tag) in values:
            self._page.assets.append(values[ASSETS[tag]])


def read_site(site: pathlib.Path) -> dict[pathlib.Path, SitePage]:
    """All pages of a site by their path."""
    pages: dict[pathlib.Path, SitePage] = {}
    for path in sorted(site.rglob("*.html")):
        page = SitePage(path)
        _Reader(page).feed(path.read_text(encoding="utf-8"))
        pages[path] = page
    return pages


def is_outside(address: str) -> bool:
    return bool(urlsplit(address).netloc) or address.startswith("//")


def broken_links(site: pathlib.Path, pages: dict[pathlib.Path, SitePage]) -> list[str]:
    """The links and assets inside the site that lead nowhere, each with its page."""
    broken = []
    for page in pages.values():
        for address in (*page.links, *page.assets):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = _file_of(site, page.path, unquote(parts.path))
            anchor = unquote(parts.fragment)
            found = target.is_file()
            if found and anchor and target in pages:
                # "__" begins the switches of the theme, "#" alone is the top of the page
                found = anchor in pages[target].anchors or anchor.startswith("__")
            if not found:
                broken.append(f"{page.path.relative_to(site)}: {address}")
    return broken


def _file_of(site: pathlib.Path, page: pathlib.Path, path: str) -> pathlib.Path:
    if not path:
        return page
    target = (site / path[1:] if path.startswith("/") else page.parent / path).resolve()
    return target / "index.html" if target.is_dir() else target


REPOSITORY = pathlib.Path(__file__).parents[2]
BUILD_TIMEOUT_S = 300
PAGE = REPOSITORY / "src/pytriton/serving/server/page/static"
REFERENCE = {
    decorators: "decorators",
    inprocess: "inprocess",
    model_config: "model_config",
    testing: "testing",
    triton_python_backend_utils: "pb_utils",
}
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


@pytest.mark.parametrize(
    "page, first",
    [
        ("server", ["Triton", "TritonConfig"]),
        ("model_config", ["Tensor", "ModelConfig"]),
        ("decorators", ["model", "batch", "sample"]),
        ("clients", ["ModelClient", "FuturesModelClient"]),
        ("exceptions", ["PyTritonClientError"]),
        ("testing", ["FunctionHarness", "ModelHarness"]),
        ("inprocess", ["Server", "Options"]),
        ("pb_utils", ["get_input_tensor_by_name", "Tensor"]),
    ],
)
def test_page_of_the_reference_begins_with_what_people_use(site, page, first):
    text = (site / f"reference/{page}.html").read_text(encoding="utf-8")
    names = re.findall(r'<h2 id="[\w.]*\.(\w+)" class="doc', text)

    assert names[: len(first)] == first


@pytest.mark.parametrize("module", REFERENCE, ids=lambda module: module.__name__)
def test_reference_leaves_out_no_public_name(site, module):
    text = (site / f"reference/{REFERENCE[module]}.html").read_text(encoding="utf-8")
    # Aliases of types and constants have no section.
    named = [name for name in module.__all__ if inspect.isroutine(getattr(module, name))]
    named += [name for name in module.__all__ if isinstance(getattr(module, name), type)]

    missing = [name for name in named if not re.search(rf'<h\d id="[\w.]*\.{name}"', text)]

    assert named
    assert missing == []


def test_no_row_of_a_table_has_the_same_link_twice():
    pages = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md")]
    repeated = []
    for page in pages:
        for line in page.read_text().splitlines():
            links = re.findall(r"\[([^\]]+)\]\(", line.lower()) if line.startswith("|") else []
            if len(set(links)) < len(links):
                repeated.append(f"{page.name}: {line}")

    assert repeated == []


def test_mark_of_the_site_is_that_of_the_page(site):
    home = (site / "index.html").read_text(encoding="utf-8")

    assert (site / "assets/mark.svg").read_bytes() == (PAGE / "icon.svg").read_bytes()
    assert '<img src="assets/mark.svg" alt="logo">' in home
    assert '<link rel="icon" href="assets/mark.svg">' in home


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
    assert complaints(browser) == []


def look_at(browser, address, width, height, scheme="light"):
    """Open a page in a window of a size, as a browser that prefers light or dark."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    preferred = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})
    browser.get(address)
    browser.execute_script("localStorage.clear()")
    browser.get(address)


def colour_of_the_page(name, scheme):
    text = (PAGE / "page.css").read_text()
    match = re.search(rf"--{name}: light-dark\((#\w+), (#\w+)\)", text)
    digits = match[1 if scheme == "light" else 2][1:]
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    return tuple(int(digits[at : at + 2], 16) for at in (0, 2, 4))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_site_has_the_colours_of_the_page(site, browser, scheme):
    look_at(browser, (site / "guides/bind.html").as_uri(), 1280, 800, scheme)
    shown = browser.execute_script(
        """
        const colour = (place, kind) => getComputedStyle(document.querySelector(place))[kind];
        return [
            colour("body", "backgroundColor"),
            colour(".md-header", "backgroundColor"),
            colour(".md-content p a", "color"),
            colour(".md-typeset h1", "color"),
        ].map(text => text.match(/\\d+/g).slice(0, 3).map(Number));
        """
    )

    names = ("ground", "card", "accent", "ink")
    assert list(map(tuple, shown)) == [colour_of_the_page(name, scheme) for name in names]


@pytest.mark.parametrize("scheme, page", [("light", "page_models"), ("dark", "page_models_dark")])
def test_home_has_the_command_to_install_and_pictures_above_the_fold(site, browser, scheme, page):
    look_at(browser, (site / "index.html").as_uri(), 1280, 800, scheme)
    installs = browser.find_element("css selector", ".md-content pre code")
    pictures = browser.find_elements("css selector", ".md-content figure img")
    shown = [picture for picture in pictures if picture.is_displayed()]
    sources = [picture.get_attribute("src").rpartition("/")[2] for picture in shown]

    assert installs.text == "pip install ."
    assert installs.rect["y"] + installs.rect["height"] < 400
    assert [source.partition("#")[0] for source in sources] == [f"{page}.png", "top.svg"]
    assert all(picture.rect["y"] < 800 for picture in shown)
    assert eventually(lambda: all(each.get_property("naturalWidth") for each in shown))


@pytest.mark.parametrize("page", ["index", "serve", "projects", "guides/bind", "reference/clients"])
def test_page_on_a_phone_has_buttons_beside_code_and_no_width_to_scroll(site, browser, page):
    look_at(browser, (site / f"{page}.html").as_uri(), 390, 844)
    button = ".md-content .md-code__nav"
    assert eventually(lambda: browser.find_elements("css selector", button))
    covered = browser.execute_script(
        """
        return [...document.querySelectorAll(".md-code__nav")].filter(nav => {
            const code = nav.parentElement.querySelector("code").getBoundingClientRect();
            return nav.getBoundingClientRect().left < code.right;
        }).map(nav => nav.parentElement.textContent);
        """
    )
    width = browser.execute_script("return document.documentElement.scrollWidth")

    assert covered == []
    assert width == 390
