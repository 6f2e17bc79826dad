# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: what a person clicks, types and sees."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from urllib.parse import quote

import pytest

from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.page.browser import started_browser
from tests.page.conftest import ODD_NAME, TOKEN

ANSWER = "#outcome"
SEND = "form.card button.primary"
READ_ONLY = "#token[data-state=off]"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with started_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def server(browser, start_page):  # not without a browser
    return start_page()


@pytest.fixture(scope="module")
def url(server):
    return f"http://127.0.0.1:{server.metrics_port}/"


@pytest.fixture
def load(server):
    """Requests to one model, until the test is over."""
    tensor = {"name": "X", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
    body = json.dumps({"inputs": [tensor]}).encode()
    end = threading.Event()

    def send() -> None:
        while not end.wait(0.02):
            call(server.http_port, "/v2/models/double/infer", body)

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    yield
    end.set()
    for thread in threads:
        thread.join()


@pytest.fixture
def fresh(browser, url):
    """The page without a token, as somebody sees it first."""
    browser.size(1280, 900)
    if not browser.driver.current_url.startswith(url):
        browser.open(url)
    browser.run("sessionStorage.clear(); localStorage.clear()")
    browser.open(url)
    return browser


@pytest.fixture
def page(browser, url):
    """The page with the token."""
    browser.size(1280, 900)
    if browser.driver.current_url.startswith(url) and browser.all("#token[data-state=on]"):
        browser.run("location.hash = '#/'")
        browser.see("table.models a", "double")
    else:
        browser.open(f"{url}#token={TOKEN}", "#token[data-state=on]")
    return browser


def go(browser, model: str) -> None:
    browser.run(f"location.hash = '#/models/{quote(model, safe='')}/1'")
    browser.see(".model-head h1", model)
    browser.see(SEND)


def test_first_look_shows_models_and_their_states(fresh):
    fresh.see(READ_ONLY, "Read-only")
    fresh.see("tr", "double").find_element("css selector", "[data-state=READY]")
    fresh.see("tr", "spare").find_element("css selector", "[data-state='NOT LOADED']")

    assert "X FP32[-1, -1] → Y FP32[-1, -1]" in fresh.text("table.models")


def test_names_are_texts_whatever_they_are(fresh):
    fresh.click("a", ODD_NAME)
    fresh.see("h1", ODD_NAME)

    assert fresh.all("main img") == []


def test_charts_move_under_load(fresh, load):
    fresh.see(".chart-card:nth-child(1) path.stroke")
    fresh.see(".chart-card:nth-child(3) path.stroke")

    assert eventually(lambda: float(fresh.text(".chart-card:nth-child(1) .now")) > 1)
    assert fresh.text(".chart-card:nth-child(3) .now").endswith("s")
    assert float(fresh.text(".chart-card:nth-child(4) .now")) >= 2
    label = fresh.see(".chart-card:nth-child(3) svg").get_attribute("aria-label")
    assert label.startswith("Latency: p50 ")


def test_filter_leaves_the_models_that_fit(fresh):
    fresh.press("/")
    fresh.press("doub")

    assert eventually(lambda: len(fresh.all("table.models tbody tr")) == 1)
    fresh.write("#filter", "nothing like it")
    fresh.see(".empty", "No model has this name.")


def test_request_without_a_token_is_refused_and_the_token_helps(fresh):
    fresh.click("table.models a", "double")
    fresh.click(SEND)
    fresh.see(f"{ANSWER} .problem", "the token of the page")
    fresh.click(f"{ANSWER} button", "Give the token")
    fresh.write("#token-value", "wrong")
    fresh.click("#token-use")
    fresh.see("#token-problem", "does not accept this token")
    fresh.write("#token-value", TOKEN)
    fresh.click("#token-use")
    fresh.gone("dialog[open]")
    fresh.see("#token[data-state=on]", "Token accepted")
    fresh.click(SEND)
    fresh.see("#took", "Answered in")

    assert "FP32 [1, 1]" in fresh.text(ANSWER)
    assert TOKEN not in fresh.driver.current_url


def test_token_of_a_link_is_taken_out_of_the_address(page):
    assert TOKEN not in page.driver.current_url


def test_address_with_a_mistake_is_shown_as_it_is(fresh, url):
    fresh.open(f"{url}#token=%&/models/50%")

    fresh.see("main", "The server has no model “50%” now.")


def test_form_sends_what_was_typed(page, url):
    go(page, "double")
    page.write("#input-X", "1.5 2 3")
    page.click(SEND)
    page.see(f"{ANSWER} pre", "[[3, 4, 6]]")
    page.click(f"{ANSWER} summary", "As JSON")

    page.see(f"{ANSWER} .code", '"model_name": "double"')


@pytest.mark.parametrize(
    "typed, problem",
    [
        ("one two", "X: expected numbers, as JSON or with spaces between, got “one two”"),
        ("[[1, 2], [3]]", "X: the lists inside have different lengths"),
        ("[[[1]]]", "X: expected the shape [-1, -1] (-1 is any size), got the shape [1, 1, 1]"),
        ("-1", "no negative numbers"),
    ],
)
def test_wrong_input_is_answered_in_words(page, url, typed, problem):
    if not page.driver.current_url.endswith("/double/1"):
        go(page, "double")
    page.write("#input-X", typed)
    page.click(SEND)

    page.see(f"{ANSWER} .problem", problem)


def test_stream_appears_as_it_comes_and_ends(page, url):
    go(page, "words")
    page.write("#input-prompt", "w")
    page.click(SEND)
    page.see(f"{ANSWER} p", "Complete.")

    assert page.text(f"{ANSWER} pre") == "You asked: w This answer comes word by word. "
    assert page.text("#took").startswith("9 responses, the first after ")


def test_stream_of_numbers_has_a_line_for_each(page):
    go(page, "count")
    page.write("#input-X", "40")
    page.click(SEND)
    page.see(f"{ANSWER} p", "Complete.")

    assert [each.text for each in page.all(".stream code")] == ["[[40]]", "[[41]]", "[[42]]"]


def test_stream_is_stopped_by_the_button(page, url, server):
    go(page, "words")
    page.write("#input-prompt", "forever")
    page.click(SEND)
    page.see(f"{ANSWER} pre", "ever ever ever")
    page.click("form.card button", "Stop")
    page.see(f"{ANSWER} p", "Stopped.")

    assert eventually(lambda: "the stream was cancelled" in server.output)


def test_details_have_examples_configuration_and_statistics(page, url, server):
    go(page, "double")
    at = f"http://127.0.0.1:{server.http_port}/v2/models/double"
    assert page.see(".columns .code pre").text.startswith(f"curl '{at}/generate'")
    page.see(".code pre", f"curl '{at}/infer'")
    page.see(".code pre", "from pytriton.client import ModelClient")
    page.click("summary", "Configuration")
    page.see("details pre", '"max_batch_size": 8')
    page.click("summary", "Statistics")

    page.see("details pre", '"inference_count"')


@pytest.mark.parametrize(
    "model, plain, answer",
    [
        ("double", '"Y":[2.0', '"data":[2.0]'),
        ("words", '"text":"word. "', '"data":["word. "]'),
    ],
)
def test_examples_work_as_they_are(page, model, plain, answer):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    go(page, model)
    *curls, python = (each.text for each in page.all(".columns .code pre")[:3])
    asked = [
        subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True).stdout
        for curl in curls
    ]

    assert plain in asked[0]
    assert answer in asked[1]
    compile(python, "example.py", "exec")


def test_model_is_loaded_and_unloaded(page, url):
    page.click("table.models a", "spare")
    page.click("button", "Load")
    page.see("#notice", "spare is loaded.")
    page.see(".model-head .badge", "ready")
    page.click("button", "Unload")
    page.driver.switch_to.alert.accept()
    page.see("#notice", "spare is unloaded.")

    page.see(".model-head .badge", "unloaded")


def test_load_that_fails_says_why(page):
    page.click("table.models a", "broken")
    page.click("button", "Load")

    page.see("#notice.is-problem", "no weights")
    page.see(".model-head .problem", "no weights")


def test_log_follows_and_filters(page, url, server):
    def fail_to_load():
        path = "/page/api/v2/repository/models/broken/load"
        call(server.metrics_port, path, b"{}", {"triton-access-token": TOKEN})

    page.click("nav a", "Log")
    page.see(".log-line", "Started HTTPService")
    page.write("#filter", "no weights")
    assert eventually(lambda: "Started HTTPService" not in page.text(".log"))
    fail_to_load()
    page.see(".log-line[data-level=ERROR]", "no weights")
    count = len(page.all(".log-line"))
    fail_to_load()

    assert eventually(lambda: len(page.all(".log-line")) > count)
    assert page.run("return document.getElementById('follow').checked")


def test_log_without_a_token_says_how_to_get_one(fresh, url):
    fresh.click("nav a", "Log")

    fresh.see(".needs-token", "for those who have the server's token")
    fresh.see(".needs-token li", "pytriton page -u localhost:")
    fresh.see(".needs-token li", "triton.get_access_token()")
    assert fresh.all(".log-line") == []
    assert "triton-access-token" not in fresh.text("main")
    fresh.click(".needs-token button", "Give the token")
    fresh.write("#token-value", TOKEN)
    fresh.click("#token-use")
    fresh.see(".log-line", "Started HTTPService")


def test_log_without_lines_says_so(fresh, url):
    fresh.run(
        "const ask = window.fetch; window.fetch = (url, ...rest) => String(url).includes('/log?') "
        "? Promise.resolve(Response.json({started: 1, last: 0, lines: []})) : ask(url, ...rest);"
    )
    fresh.click("nav a", "Log")

    fresh.see(".note", "No lines yet.")


def test_log_shows_what_models_print_and_filters_by_model_level_and_request(page, server):
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [5]}
    for name, request in (("double", "order-17"), ("double", "order-18"), ("count", "order-19")):
        body = json.dumps({"id": request, "inputs": [tensor]}).encode()
        call(server.http_port, f"/v2/models/{name}/infer", body)
    page.run("location.hash = '#/log/double'")
    page.see(".log-line", "doubling 5.0")
    assert page.run("return document.getElementById('log-model').value") == "double"

    page.click(".tag.id", "order-17")
    assert eventually(lambda: len(page.all(".log-line")) == 1)
    page.see(".note", "1 line that fit")
    page.run(
        "const level = document.getElementById('log-level'); level.value = 'ERROR';"
        "level.dispatchEvent(new Event('change'))"
    )
    page.see(".note", "No line fits.")


def test_log_begins_again_with_another_server(page, url):
    page.run("location.hash = '#/log'")
    page.see(".log-line", "Started HTTPService")
    page.run(
        "const ask = window.fetch; window.fetch = (url, ...rest) => String(url).includes('/log?') "
        "? Promise.resolve(Response.json({started: 9, last: 1, lines: [{number: 1, time: 1, "
        "level: 'INFO', place: 'a.py:1', text: 'a new server', model: '', request_ids: [], "
        "process: 1}]})) : ask(url, ...rest);"
    )
    page.see(".log-line", "a new server")

    assert eventually(lambda: "Started HTTPService" not in page.text(".log"))
    page.open(f"{url}#token={TOKEN}", "#token[data-state=on]")


def test_server_and_api_are_shown(page, url, server):
    page.click("nav a", "Server")
    page.see("dd", f"127.0.0.1:{server.http_port}")
    page.see("dd", str(server.repository))
    page.click("nav a", "API")
    page.write("#filter", "double/infer")
    page.click(".operation summary", "/v2/models/double/infer")

    page.see(".operation pre", '"datatype"')


def test_keyboard_is_enough(fresh, url):
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415  may be missing

    fresh.run("document.body.focus()")
    fresh.press("?")
    fresh.see("#help-dialog", "Keyboard")
    fresh.press(Keys.ESCAPE)
    fresh.press("t")
    fresh.see("#token-dialog")
    fresh.see("#token-command", "pytriton page -u localhost:")
    fresh.press(TOKEN, Keys.ENTER)
    fresh.gone("dialog[open]")
    fresh.press("/")
    fresh.press("double", Keys.TAB)
    assert eventually(lambda: fresh.driver.switch_to.active_element.text == "double")
    outline = fresh.run("return getComputedStyle(document.activeElement).outlineStyle")
    fresh.press(Keys.ENTER)
    fresh.see(SEND)
    for _ in range(30):
        if fresh.driver.switch_to.active_element.get_attribute("id") == "input-X":
            break
        fresh.press(Keys.TAB)
    fresh.press(Keys.ENTER, held=Keys.CONTROL)

    fresh.see("#took", "Answered in")
    assert outline == "solid"


def test_theme_is_the_systems_and_then_the_users(fresh, url):
    def is_dark() -> bool:
        colour = fresh.run("return getComputedStyle(document.body).backgroundColor")
        return int(colour.removeprefix("rgb(").split(",")[0]) < 100

    def prefer(scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        fresh.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    prefer("dark")
    assert is_dark()
    prefer("light")
    assert not is_dark()
    fresh.click("#theme")
    assert is_dark()
    fresh.open(url)
    assert is_dark()


def test_parts_of_the_page_decide_as_they_should(page):
    spec = "{name: 'X', datatype: 'FP32', shape: [-1, 3]}"

    def tensor(text: str) -> object:
        return page.module("tensors.js", f"it.readTensor({text!r}, {spec})")

    assert tensor("1 2 3") == {"shape": [1, 3], "data": [1, 2, 3]}
    assert tensor("[1,2,3,4,5,6]") == {"shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
    assert tensor("[[1,2,3],[4,5,6]]") == {"shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
    assert tensor("zeros(2,3)") == {"shape": [2, 3], "data": [0] * 6}
    assert len(tensor("random")["data"]) == 3
    assert tensor("1 2") == "X: expected the shape [-1, 3] (-1 is any size), got the shape [2]"
    assert tensor("true true true") == "X: expected numbers, got “true”"
    text = "{name: 'T', datatype: 'BYTES', shape: [1]}"
    assert page.module("tensors.js", f"it.readTensor('[not JSON', {text})")["data"] == ["[not JSON"]
    nested = "{datatype: 'FP32', shape: [2, 2], data: [1, 2.5, 3, 4]}"
    assert page.module("tensors.js", f"it.tensorText({nested})") == "[[1, 2.5],\n [3, 4]]"
    assert page.module("charts.js", "[0, 0.3, 7, 10, 11].map(it.roundUp)") == [1, 0.5, 10, 10, 20]
    assert page.module("data.js", "it.duration(3700)") == "1 h 1 min"


def points(page, key: str, seconds: int) -> list[dict[str, float]]:
    """The points of an hour of samples: fine ones of six seconds, coarse ones of an hour."""

    def sample(time: float, apart: float, requests: int) -> list[object]:
        record = [requests, 1, 2, 3.5, 3, 4, 5, 1.5, 6, 7]
        return [time, apart, 1 << 20, [[0, *record], [1, *record]], [[1, 10, 11, 12, 13, 14, 15]]]

    answer = {
        "now": {"models": [{"name": "m", "version": "1"}], "machine": {}},
        "models": [[1, "", "m", "1", 0], [2, "", "late", "1", 4004]],
        "fine": [sample(4000 + 2 * at, 2, 100 + at) for at in range(4)],
        "coarse": [sample(400 + 10 * at, 10, at) for at in range(361)],
    }
    filled = f"((series) => (series.add({json.dumps(answer)}), series))(new it.Series())"
    return page.module("data.js", f"{filled}.of({json.dumps(key)}, {seconds})")


def test_points_of_a_range_are_coarse_and_end_with_fine_ones(page):
    hour, quarter, minutes = (points(page, "/m/1", seconds) for seconds in (3600, 900, 300))

    assert [point["time"] for point in minutes] == [4000, 4002, 4004, 4006]
    assert (hour[0]["time"], hour[-2]["time"], len(hour)) == (410, 4004, 363)
    assert (quarter[0]["time"], quarter[-1]["requests"], len(quarter)) == (3110, 103, 93)
    names = (
        "time",
        "seconds",
        "memory",
        "requests",
        "errors",
        "inferences",
        "mean",
        "p50",
        "batch",
    )
    assert [minutes[0][name] for name in names] == [4000, 2, 1, 100, 1, 2, 3.5, 3, 1.5]
    names = ("pending", "running", "start50", "start99", "between50", "between99")
    assert [minutes[0][name] for name in names] == [6, 7, 10, 12, 13, 15]


def test_model_without_a_record_did_nothing_since_it_is_known(page):
    late = points(page, "/late/1", 3600)

    assert [point["time"] for point in late] == [4004, 4006]
    assert [(each["requests"], each["p50"], each["between50"]) for each in late] == [
        (0, None, None)
    ] * 2
    assert points(page, "/never/1", 3600) == []


def test_page_opens_with_the_history_and_shows_the_range_that_is_chosen(fresh, url, server, load):
    def axis() -> str:
        return fresh.text(".chart-card:nth-child(1) svg text[text-anchor=start]")

    def drawn() -> int:
        path = fresh.run(
            "return document.querySelector('.chart-card path.stroke')?.getAttribute('d') || ''"
        )
        return path.count("L")

    assert eventually(lambda: len(call(server.metrics_port, "/page/api/samples").json["fine"]) > 8)
    fresh.open(url)
    assert drawn() >= 5  # with the first answer
    fresh.click(".range button", "1 h")
    fresh.see(".range [aria-pressed=true]", "1 h")
    fresh.open(url)
    fresh.see(".range [aria-pressed=true]", "1 h")
    assert axis().endswith("ago")


def test_streams_have_charts_of_their_own(fresh, url, server):
    tensor = {"name": "prompt", "datatype": "BYTES", "shape": [1], "data": ["w"]}
    request = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Accept": "text/event-stream"}
    assert call(server.http_port, "/v2/models/words/infer", request, headers).status == 200
    fresh.see(".chart-card h3", "First response")
    fresh.see(".chart-card h3", "Latency, no streams")
    go(fresh, "words")
    fresh.see(".chart-card h3", "Between responses")

    fresh.see(".chart-card h3", "Duration of streams")
    go(fresh, "double")
    fresh.see(".chart-card h3", "Latency")
    hidden = (
        "return [...document.querySelectorAll('.chart-card[hidden] h3')].map((e) => e.textContent)"
    )
    assert fresh.run(hidden) == ["First response", "Between responses"]


def test_chart_tells_what_was_measured_a_moment_ago(page):
    chart = "new it.Chart('t', [{name: 'a', label: 'a'}, {name: 'b', label: 'b'}], String)"
    points = "[{time: 1, a: 5, b: 6}, {time: 2, a: null, b: 0}]"
    newest = page.module(
        "charts.js", f"((chart) => (chart.points = {points}, chart.newest()))({chart})"
    )

    assert newest == {"time": 2, "a": 5, "b": 0}


def test_server_without_a_cluster_says_so_and_has_no_empty_tables(fresh, url):
    fresh.open(f"{url}#/cluster")
    fresh.see(".facts", "All instances run on the server")

    shown = "return [...document.querySelectorAll('main table')].some((e) => e.checkVisibility())"
    assert not fresh.run(shown)


def test_memory_of_the_server_has_a_chart(fresh):
    fresh.click("nav a", "Server")

    fresh.see(".chart-card .now", "MiB")


def test_page_comes_back_after_a_restart(browser, url, server, start_page):
    browser.open(url)
    server.end()
    browser.see("#status[data-state=lost]", "No answer, trying again")
    start_page(ports=server.ports)

    browser.see("#status[data-state=live]")
    browser.see("table.models tr", "double")


def test_nothing_came_from_elsewhere_and_nothing_went_wrong(browser, url):
    """The last test: it looks back on all others."""
    hosts = {address.split("/")[2] for address in browser.requested() if address.startswith("http")}
    # Refusals and a server that was ended are what some tests are about.
    expected = (
        "403",
        "400",
        "404",
        "500",
        "ERR_CONNECTION",
        "ERR_EMPTY_RESPONSE",
        "ERR_INCOMPLETE",
    )
    problems = [line for line in browser.console() if not any(word in line for word in expected)]

    assert all(host.startswith("127.0.0.1:") for host in hosts), hosts
    assert problems == []
