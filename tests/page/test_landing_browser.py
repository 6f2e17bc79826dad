# SPDX-License-Identifier: Apache-2.0
"""The landing page in a real browser: what a person reads, types and copies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated

import numpy as np
import pytest

from pytriton.decorators import model
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests.free_ports import free_ports
from tests.page.browser import started_browser
from tests.pictures import keep

SECRET = "s3cret"
Row = Annotated[np.ndarray, np.float32, (3,)]


def greet(name: str, excited: bool = False) -> str:
    """Greet a person.

    Args:
        name: Whom to greet.
        excited: Whether the greeting ends with an exclamation mark.

    Returns:
        The greeting.
    """
    return f"Hello {name}{'!' if excited else '.'}"


def count(word: str, times: int = 3) -> Iterator[str]:
    """Say a word again and again: <b>as often</b> as you like."""
    for number in range(times):
        yield f"{word} {number} "


def scale(values: Row, factor: float) -> Row:
    """Multiply three numbers by a factor."""
    return values * np.float32(factor)


@model(openai="chat")
def chat(messages: str) -> str:
    """Repeat the last message."""
    return json.loads(messages)[-1]["content"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with started_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def started(restricted=(), **settings):
    ports = dict(zip(("http_port", "grpc_port", "metrics_port"), free_ports(3), strict=True))
    security = TritonSecurityConfig(access_token=SECRET, restricted_endpoints=list(restricted))
    triton = Triton(config=TritonConfig(**ports, **settings), security_config=security)
    for function in (greet, count, scale, chat):
        triton.bind(function)
    triton.run()
    return triton, f"http://127.0.0.1:{ports['http_port']}/"


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "front ends"])
def url(request, browser):  # not without a browser
    triton, url = started(frontend_processes=request.param)
    yield url
    triton.stop()


@pytest.fixture
def page(browser, url):
    browser.size(1280, 900)
    browser.open(url, "#greet form")
    return browser


def example(page, language: str) -> str:
    page.click("#greet .choice button", language)
    page.see("#greet .choice button[aria-selected=true]", language)
    return page.text("#greet .code pre")


def test_page_shows_models_with_their_docstrings(page):
    page.see("h1", "4 models are ready")
    page.see("#greet > p", "Greet a person.")
    page.see("#greet .field .note", "Whom to greet.")
    page.see("#greet .field label", "name a text")
    page.see("#greet .field label", "excited true or false, optional")

    assert page.text("#count > p") == "Say a word again and again: <b>as often</b> as you like."
    assert not page.all("#count b")
    assert not [line for line in page.console() if "landing" in line]


def test_form_sends_a_request_and_shows_the_answer(page):
    page.write("#greet input[id='greet.name']", "Ada")
    page.write("#greet input[id='greet.excited']", "true")
    page.click("#greet button.primary")

    page.see("#greet .answer pre", "Hello Ada!")


def test_form_shows_a_refusal_in_words(page):
    page.write("#greet input[id='greet.excited']", "1")
    page.click("#greet button.primary")

    page.see(
        "#greet .answer .problem",
        "input 'excited' of model 'greet': expected true or false, got the number 1",
    )


def test_form_takes_lists(page):
    page.write("#scale [id='scale.values']", "1 2 3")
    page.write("#scale [id='scale.factor']", "2.5")
    page.click("#scale button.primary")

    page.see("#scale .answer pre", "[2.5,5,7.5]")


def test_example_of_a_chat_is_json(page):
    page.click("#chat button.primary")

    page.see("#chat .answer pre", "Hello")


def test_stream_is_shown_as_it_comes(page):
    page.write("#count [id='count.word']", "knock")
    page.write("#count [id='count.times']", "4")
    page.click("#count button.primary")

    page.see("#count .answer .note", "4 answers, complete")
    assert page.text("#count .answer pre") == "knock 0 knock 1 knock 2 knock 3 "


def test_examples_follow_the_form_and_run(page):
    page.write("#greet input[id='greet.name']", "O'Neil")
    curl, python = example(page, "curl"), example(page, "Python")
    script = example(page, "JavaScript")

    asked = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True)
    assert "Hello O'Neil." in asked.stdout
    ran = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, check=True)
    assert "Hello O'Neil." in ran.stdout
    answer = page.driver.execute_async_script(
        f"const done = arguments[0]; console.log = done;\n(async () => {{ {script} }})()"
    )
    assert answer["output"] == "Hello O'Neil."


def test_page_uses_no_other_server_and_fits_a_phone(page, url):
    page.size(390, 844, mobile=True)
    page.open(url, "#greet form")

    assert page.run("return document.documentElement.scrollWidth <= 390")
    assert not [
        each
        for each in page.requested()
        if not each.startswith(("http://127.0.0.1:", "data:", "about:", "chrome:"))
    ]


def test_unknown_path_points_to_the_model(page, url):
    page.open(f"{url}gret", "h1")

    page.see("p", "/v2/models/greet/generate")
    page.see(".brand", "pytriton")
    page.click("a", "Try it")
    page.see("#greet form")


def test_docs_lead_to_the_page(page, url):
    page.open(f"{url}docs", "#greet form")

    assert page.driver.current_url == url


def test_colours_can_be_changed(page):
    before = page.run("return getComputedStyle(document.body).backgroundColor")
    page.click("#theme")

    assert page.run("return getComputedStyle(document.body).backgroundColor") != before
    page.click("#theme")
    assert page.run("return getComputedStyle(document.body).backgroundColor") == before


def test_picture_of_the_page(browser, url):
    browser.size(1280, 800)
    browser.open(url, "#greet form")
    browser.run("document.documentElement.dataset.theme = 'light'")
    browser.write("#greet input[id='greet.name']", "Ada")
    browser.click("#greet button.primary")
    browser.see("#greet .answer pre", "Hello Ada.")
    browser.see("#greet .answer .note", "Answered in")
    browser.see("#server-name", "pytriton")
    browser.replace("http://127\\.0\\.0\\.1:[0-9]+", "http://localhost:8000")
    browser.run("document.activeElement.blur(); location.hash = '#greet'")

    keep("landing_page.png", browser.picture())


def test_form_asks_for_the_header_of_restricted_inference(browser):
    triton, url = started(["inference"])
    try:
        browser.size(1280, 900)
        browser.open(url, "#greet form")
        browser.click("#greet button.primary")
        browser.see("#greet .secret label", "Value of the header triton-access-token")
        browser.write("#greet .secret input", SECRET)
        browser.click("#greet .secret button")

        browser.see("#greet .answer pre", "Hello Hello.")
        assert SECRET not in browser.text("#greet .code pre")
    finally:
        triton.stop()


def test_models_are_listed_with_the_header_of_restricted_metadata(browser):
    triton, url = started(["metadata"])
    try:
        browser.size(1280, 900)
        browser.open(url, ".secret")
        assert not browser.all(".model")
        browser.write(".secret input", SECRET)
        browser.click(".secret button")

        browser.see("#greet form")
    finally:
        triton.stop()
