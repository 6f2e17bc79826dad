# SPDX-License-Identifier: Apache-2.0
"""Pages of other origins in a real browser: what they may do, and what they may not."""

from __future__ import annotations

import base64
import http.server
import json
import re
import threading
from pathlib import Path

import pytest

from tests.e2e.http_client import call
from tests.page.browser import started_browser
from tests.repository_e2e.model_files import DECOUPLED, code, config, decoupled_code, model

# The browser finds all names here; .test and .example belong to nobody.
RULES = "--host-resolver-rules=MAP *.test 127.0.0.1, MAP *.example 127.0.0.1"
DOCUMENT = Path(__file__).parents[2] / "docs" / "browsers.md"
MODELS = {
    "plus": model(code("y = x + 1")),
    "count": model(decoupled_code("for n in range(3): send([[n + x[0, 0]]])"), config(DECOUPLED)),
}


class Site(http.server.BaseHTTPRequestHandler):
    """An empty page at every address."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>page</title><body id=page>a page</body>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with started_browser(tmp_path_factory.mktemp("profile"), RULES) as browser:
        yield browser


@pytest.fixture(scope="module")
def site():
    """The port of a site, which has all names."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module", params=["0", "2"], ids=["one process", "front ends"])
def server(request, start_server, site, browser):  # not without a browser
    flags = [
        "--model-control-mode=explicit",
        "--load-model=*",
        f"--cors-allow-origins=http://app.test:{site},http://*.apps.test:{site}",
    ]
    environment = {"PYTRITON_FRONTEND_PROCESSES": request.param}
    return start_server(MODELS, flags=flags, environment=environment).await_ready()


@pytest.fixture
def visit(browser, site):
    """Opens a page of a site."""

    def visit(name: str) -> None:
        browser.open(f"http://{name}:{site}/", "#page")

    return visit


def run(browser, script: str, *arguments):
    """What an asynchronous function of a page returns, or the error that it throws."""
    return browser.driver.execute_async_script(
        f"""const done = arguments[arguments.length - 1];
        (async (...given) => {{ {script} }})(...arguments)
        .then((value) => done({{value}}), (error) => done({{error: String(error)}}));""",
        *arguments,
    )


FETCH = """
    const [url, options] = given;
    const response = await fetch(url, options);
    const exposed = response.headers.get("Inference-Header-Content-Length");
    return [response.status, await response.text(), exposed];
"""


def example(server) -> str:
    """The script of the page about browsers, for this server."""
    (script,) = re.findall(r"```javascript\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return script.replace("https://models.example.com", f"http://127.0.0.1:{server.http_port}")


@pytest.mark.parametrize("name", ["app.test", "a.apps.test"])
def test_example_runs_in_a_page_of_an_allowed_origin(browser, server, visit, name):
    visit(name)

    for _ in range(20):  # also when requests like it are known
        assert run(browser, f"{example(server)} return infer('plus', [1, 2]);") == {"value": [2, 3]}


def test_error_can_be_read_by_an_allowed_page(browser, server, visit):
    visit("app.test")

    answer = run(browser, f"{example(server)} return infer('none', [1]);")
    assert answer == {"error": "Error: Request for unknown model: 'none' is not found"}


def test_binary_tensors_need_a_preflight_which_is_answered(browser, server, visit):
    visit("app.test")
    url = f"http://127.0.0.1:{server.http_port}/v2/models/plus/infer"
    text = json.dumps(
        {
            "inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [1]}],
            "outputs": [{"name": "Y", "parameters": {"binary_data": True}}],
        }
    )
    headers = {"Inference-Header-Content-Length": str(len(text))}
    headers |= {"Content-Type": "application/octet-stream", "X-Stainless-OS": "Linux"}

    options = {"method": "POST", "body": text, "headers": headers}
    status, body, exposed = run(browser, FETCH, url, options)["value"]
    assert status == 200
    assert body[: int(exposed)].startswith('{"model_name":"plus"')


def test_stream_can_be_read_by_an_allowed_page(browser, server, visit):
    visit("app.test")
    url = f"http://127.0.0.1:{server.http_port}/v2/models/count/generate_stream"

    status, body, _ = run(browser, FETCH, url, {"method": "POST", "body": '{"X": 5}'})["value"]
    assert status == 200
    numbers = [json.loads(line[6:])["Y"] for line in body.split("\n\n") if line]
    assert numbers == [5.0, 6.0, 7.0]


def test_header_that_is_not_allowed_is_not_sent(browser, server, visit):
    visit("app.test")
    url = f"http://127.0.0.1:{server.http_port}/v2"

    assert "TypeError" in run(browser, FETCH, url, {"headers": {"X-Other": "1"}})["error"]


@pytest.mark.parametrize("name", ["evil.example", "apps.test", "app.test.evil.example"])
def test_page_of_another_origin_reads_and_runs_nothing(browser, server, visit, name):
    visit(name)
    root = f"http://127.0.0.1:{server.http_port}"

    for url, options in (
        (f"{root}/v2", {}),
        (f"{root}/v2/models/plus/infer", {"method": "POST", "body": "{}"}),
        (f"{root}/v2", {"method": "DELETE"}),
    ):
        assert "TypeError" in run(browser, FETCH, url, options)["error"]
    blind = {"method": "POST", "mode": "no-cors", "body": load_body()}
    run(browser, FETCH, f"{root}/v2/repository/models/evil/load", blind)
    assert "evil" not in server.index()


def load_body() -> str:
    source = base64.b64encode(b"open('ran', 'w')").decode()
    files = {"config": '{"backend": "python"}', "file:1/model.py": source}
    return json.dumps({"parameters": files})


def test_form_of_another_site_loads_no_model(browser, server, visit):
    visit("evil.example")
    # A form of this type sends `name=value`: the equals sign is made a part of the JSON.
    script = """
        const form = document.createElement("form"), field = document.createElement("input");
        form.method = "POST"; form.enctype = "text/plain"; form.action = arguments[0];
        const [name, value] = arguments[1].replace("}}", ', "a": "="}}').split("=");
        field.name = name; field.value = value;
        form.append(field); document.body.append(form); form.submit();"""
    browser.run(
        script, f"http://127.0.0.1:{server.http_port}/v2/repository/models/evil/load", load_body()
    )

    browser.see("body", "requests from pages of another origin are refused")
    assert "evil" not in server.index()
    assert not (server.folder / "ran").exists()


def test_name_that_was_bound_to_this_machine_is_refused(browser, server):
    for port in (server.http_port, server.metrics_port):
        browser.driver.get(f"http://evil.example:{port}/v2")

        browser.see("body", f"one of --allowed-hosts as Host, got Host 'evil.example:{port}'")


def test_refused_requests_of_pages_are_counted(server):
    page = call(server.metrics_port, "/metrics").body.decode()

    assert int(re.search(r'refusals_total{limit="foreign_pages"} (\d+)', page)[1]) > 0


@pytest.fixture(scope="module", params=["0", "2"], ids=["one process", "front ends"])
def open_server(request, start_server, browser):
    """A server without tokens for all machines."""
    flags = ["--http-address=0.0.0.0", "--allowed-hosts=models.example"][
        : 1 + (request.param == "2")
    ]
    environment = {"PYTRITON_FRONTEND_PROCESSES": request.param}
    return start_server(MODELS, flags=flags, environment=environment).await_ready()


def test_open_server_is_not_reached_by_a_name_of_the_internet(browser, open_server):
    port = open_server.http_port
    browser.driver.get(f"http://evil.example:{port}/v2")
    browser.see("body", f"one of --allowed-hosts as Host, got Host 'evil.example:{port}'")

    browser.driver.get(f"http://127.0.0.1:{port}/v2")
    browser.see("body", '"name":"triton"')


def test_open_server_answers_programs_and_private_or_allowed_names(browser, open_server):
    port = open_server.http_port
    is_limited = call(port, "/v2", headers={"Host": "models.example.org"}).status == 403
    name = "models.example" if is_limited else "models.test"
    browser.driver.get(f"http://{name}:{port}/v2")

    browser.see("body", '"name":"triton"')
