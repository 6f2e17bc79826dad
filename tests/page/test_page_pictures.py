# SPDX-License-Identifier: Apache-2.0
"""The pictures of the page for the docs: a small shop's models, an hour of work, some errors.

Models, their states, errors and answers are real. The samples of the hour and the ages of errors
are made up, as no test waits for so long: a script in the browser puts them in place of the
server's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.page.browser import started_browser
from tests.page.conftest import HEADERS, TOKEN, WORDS, WORDS_CONFIG
from tests.pictures import keep
from tests.repository_e2e.model_files import code, config, model

PRICE = code("""
def area_of(row):
    if row[0] < 0:
        raise ValueError(f"the area is negative: {row[0]}")
    return row[0]
y = x * area_of(x[0])
""")
CLASSIFY = code("""
if x.shape[1] != 4:
    problem = pb_utils.TritonError(f"expected 4 features, got {x.shape[1]}")
    responses.append(pb_utils.InferenceResponse(error=problem))
    continue
y = 2 * x
""")
MODELS = {
    "classify": model(CLASSIFY, config("dynamic_batching { }")),
    "price": model(PRICE),
    "story": model(WORDS, WORDS_CONFIG),
    "translate": model(code(initialize="import sentencepiece")),
    "spare": model(),
}
SCRIPTS = Path(__file__).parent


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with started_browser(tmp_path_factory.mktemp("profile")) as browser:
        samples = (SCRIPTS / "hour_of_samples.js").read_text()
        script = f"(() => {{ {samples} }})()"
        browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        yield browser


@pytest.fixture(scope="module")
def server(browser, start_server):  # not without a browser
    loaded = [f"--load-model={name}" for name in ("classify", "price", "story", "spare")]
    server = start_server(
        MODELS,
        flags=["--model-control-mode=explicit", *loaded],
        environment={"PYTRITON_PAGE_TOKEN": TOKEN},
    ).await_ready()
    assert server.load("translate").status == 400
    assert server.unload("spare").status == 200
    fail(server)
    return server


def fail(server) -> None:
    """Requests that fail in several ways, and some that are refused."""
    for number in range(37):
        send(server, "price", [-3.5, 2, 1, 4], request_id=f"offer-{1204 + number}")
        if number % 4 == 0:
            send(server, "classify", [1, 2, 3], request_id=f"image-{88 + number}")
        if number % 9 == 0:
            send(server, "prices", [1, 2, 3, 4])
            send(server, "price", [1, 2, 3, 4], name="x")
    groups = call(server.metrics_port, "/page/api/failures", headers=HEADERS).json["groups"]
    assert sorted(each["count"] for each in groups) == [5, 5, 10, 37]


def send(server, model_name: str, row: list[float], name: str = "X", request_id: str = "") -> None:
    tensor = {"name": name, "datatype": "FP32", "shape": [1, len(row)], "data": row}
    body = json.dumps({"id": request_id, "inputs": [tensor]}).encode()
    assert call(server.http_port, f"/v2/models/{model_name}/infer", body).status >= 400


@pytest.fixture
def page(browser, server):
    """The page with the token, in light colours, with the charts of the last 5 minutes."""
    url = f"http://127.0.0.1:{server.metrics_port}/"
    samples = "/page/api/samples"
    assert eventually(lambda: call(server.metrics_port, samples).json["models"])
    browser.size(1280, 940)
    browser.open(url)
    browser.run("localStorage.clear(); localStorage.setItem('theme', 'light')")
    browser.open(f"{url}#token={TOKEN}", "#token[data-state=on]")
    browser.see(".chart-card:nth-child(1) path.stroke")
    return browser


def show(page, place: str, width: int = 1280, height: int = 940, *, mobile: bool = False) -> None:
    page.run("location.hash = arguments[0]", place)
    page.size(width, height, mobile=mobile)
    page.run("document.activeElement.blur(); scrollTo(0, 0)")


def assert_no_sideways_scrolling(page) -> None:
    widths = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    scroll, client = page.run(widths)
    assert scroll <= client


def test_pictures_of_models_with_an_hour_of_work(page):
    page.click(".range button", "1 h")
    page.see(".chart-card svg text", "60 min ago")
    page.see("td.is-bad")
    page.see("tr", "unloaded")
    page.see("tr", "sentencepiece")
    show(page, "#/", height=1000)

    keep("page_models.png", page.picture())
    page.click("#theme")
    keep("page_models_dark.png", page.picture())


def test_picture_of_a_model_that_streams(page):
    page.run("document.documentElement.dataset.theme = 'dark'")
    show(page, "#/models/story/1", height=1000)
    page.write("#input-prompt", "What is a trident?")
    page.click("form.card button.primary")
    page.see("#outcome p", "Complete.")
    show(page, "#/models/story/1", height=1000)
    page.replace("http://127\\.0\\.0\\.1:[0-9]+", "http://localhost:8000")
    page.replace("grpc://127\\.0\\.0\\.1:[0-9]+", "grpc://localhost:8001")
    page.run("document.querySelector('.chart-card:nth-child(5)').scrollIntoView()")
    page.run("scrollBy(0, -70)")  # the bar covers what is behind it

    keep("page_model_dark.png", page.picture())


def test_picture_of_errors(page):
    show(page, "#/errors", height=800)
    page.click(".failure summary", "ValueError")
    page.see(".failure[open] pre", "in area_of")
    page.see(".failure .place", "unknown model")
    page.replace('[^\\s"]+(?=/price/1/)', "/models")
    show(page, "#/errors", height=800)

    keep("page_errors.png", page.picture())


def test_picture_for_a_phone(page):
    show(page, "#/", 390, 844, mobile=True)
    page.see(".chart-card:nth-child(1) path.stroke")

    assert_no_sideways_scrolling(page)
    keep("page_narrow.png", page.picture())


@pytest.mark.parametrize(
    "place", ["#/", "#/models/price/1", "#/errors", "#/log", "#/server", "#/api"]
)
def test_view_fits_a_phone(page, place):
    show(page, place, 390, 844, mobile=True)
    page.see("main h1, main h2")

    assert_no_sideways_scrolling(page)


@pytest.mark.parametrize("width", [1280, 1000, 390])
def test_labels_of_charts_do_not_overlap(page, width):
    script = (SCRIPTS / "overlapping_labels.js").read_text()
    page.size(width, 900, mobile=width == 390)
    page.run("location.hash = '#/models/price/1'")
    page.see(".model-head h1", "price")

    assert eventually(lambda: page.run(script) == []), page.run(script)


def test_nothing_went_wrong_in_the_browser(browser):
    assert [line for line in browser.console() if "403" not in line] == []
