# SPDX-License-Identifier: Apache-2.0
"""Errors in a real browser: they are red where models are listed, and grouped in a view."""

from __future__ import annotations

import threading

import pytest

from tests.e2e.http_client import call
from tests.page.browser import started_browser
from tests.page.conftest import TOKEN
from tests.page.test_page_failures import RAISES, body
from tests.repository_e2e.model_files import model

VIEW = ".failures .failure"
READ_ONLY, ALLOWED = "#token[data-state=off]", "#token[data-state=on]"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with started_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def server(browser, start_server):  # not without a browser
    return start_server(
        {"raises": model(RAISES), "quiet": model()}, environment={"PYTRITON_PAGE_TOKEN": TOKEN}
    ).await_ready()


@pytest.fixture(scope="module")
def url(server):
    return f"http://127.0.0.1:{server.metrics_port}/"


@pytest.fixture
def failures(server):
    """Requests that fail and that are refused, until the test is over."""
    end = threading.Event()

    def send() -> None:
        number = 0
        while not end.wait(0.05):
            number += 1
            content = body(number % 100 + 10, id=f"request-{number}")
            call(server.http_port, "/v2/models/raises/infer", content)
            if number % 10 == 1:
                call(server.http_port, "/v2/models/raises/infer", body(1, name="Wrong"))
                call(server.http_port, "/v2/models/missing/infer", content)

    thread = threading.Thread(target=send)
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.fixture
def fresh(browser, url):
    """The page without a token."""
    browser.size(1280, 900)
    browser.open(url)
    browser.run("sessionStorage.clear(); localStorage.clear()")
    browser.open(url, READ_ONLY)
    return browser


@pytest.fixture
def page(browser, url):
    """The page with the token."""
    browser.size(1280, 900)
    browser.open(f"{url}#token={TOKEN}", ALLOWED)
    return browser


def test_server_without_failures_says_so(fresh, url):
    fresh.open(f"{url}#/errors")

    fresh.see(".failures .empty", "No request has failed")
    assert not fresh.all(VIEW)
    assert not fresh.all("nav a.is-bad")


def test_failing_model_is_red_in_the_table_and_in_the_chart(fresh, failures):
    cell = "tr:has(a[href*='raises']) td.number:nth-child(5)"
    fresh.see(f"{cell}.is-bad")
    fresh.see("thead th:nth-child(5)", "Errors/s")
    fresh.see(".chart-card:nth-child(2) h3", "Errors/s")
    fresh.see(".chart-card:nth-child(2) path.stroke.line-bad")
    fresh.see("nav a.is-bad", "Errors")

    assert float(fresh.text(cell)) > 0
    assert fresh.text("tr:has(a[href*='quiet']) td.number:nth-child(5)") == "0"
    assert not fresh.all("tr:has(a[href*='quiet']) td.is-bad")


def test_errors_without_a_token_are_counts_that_say_what_is_missing(fresh, failures):
    fresh.press("e")
    fresh.see(f"{VIEW} .what", "ValueError")
    fresh.click(f"{VIEW} summary", "ValueError")
    fresh.see(f"{VIEW}[open]", "need the token")
    fresh.click(f"{VIEW}[open] button", "Give the token")
    fresh.write("#token-value", TOKEN)
    fresh.click("#token-use")

    fresh.see(ALLOWED)
    fresh.see(f"{VIEW} .place", "model.py:")


def test_group_has_its_place_an_example_and_a_traceback(page, url, failures):
    page.open(f"{url}#/errors")
    page.see(f"{VIEW} .place", "Request for unknown model: '…' is not found")
    page.see(f"{VIEW} .place", "unexpected inference input '…'")
    page.click(f"{VIEW} summary", "ValueError")
    page.see(f"{VIEW}[open] .message", "ValueError: no room for")
    page.see(f"{VIEW}[open] dd", "X FP32[1, 1]")
    page.see(f"{VIEW}[open] dd", "request-")
    page.see(f"{VIEW}[open] pre", "in check")


def test_inputs_are_shown_after_somebody_asked_for_them(page, url, failures):
    page.open(f"{url}#/models/raises/1")
    page.see(".model-head h1", "raises")
    page.click(f"{VIEW} summary", "ValueError")
    page.click(f"{VIEW}[open] button", "Keep the inputs of the next failure")
    page.click(f"{VIEW}[open] button", "Show the kept inputs")
    page.see(f"{VIEW}[open] pre", '"datatype": "FP32"')
    page.click(f"{VIEW}[open] button", "Forget them")

    page.see(f"{VIEW}[open] button", "Keep the inputs of the next failure")


def test_model_shows_its_own_errors_only(page, url, failures):
    page.open(f"{url}#/models/raises/1")
    page.see(f"{VIEW} .what", "ValueError")
    own = page.text(".failures")
    page.run("location.hash = '#/models/quiet/1'")
    page.see(".model-head h1", "quiet")

    assert "no model" not in own
    assert not page.all(f"{VIEW} .what")


def test_nothing_went_wrong_in_the_browser(browser):
    assert [line for line in browser.console() if "403" not in line] == []
