# SPDX-License-Identifier: Apache-2.0
"""The landing page without sockets: who gets what at which path."""

from __future__ import annotations

import json

import pytest

from pytriton.runtime.transport.control import Started
from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.serving.server.landing import api
from pytriton.serving.server.landing.routes import LandingRoutes
from tests.server.http_fakes import get, post
from tests.server.http_models import Service, ask, error

HTML = b"Accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"
ANY = b"Accept: */*"
SECRET = RestrictedGroup(apis=("metadata",), header="key", value="sesame")


def service_with(landing_page: str, **options) -> Service:
    service = Service(landing_page=landing_page, **options)
    service.client.ports = lambda: Started(8000, 8001, 8002)
    if landing_page != "none":
        routes = LandingRoutes(service.api, service.client, service.options)
        service.api.resolve_unknown = routes.resolve
    return service


@pytest.mark.parametrize(
    "path, accept, statuses",
    [
        # the statuses with landing_page none, browsers and all
        (b"/", HTML, (404, 200, 200)),
        (b"/", ANY, (404, 404, 200)),
        (b"/?x=1", ANY, (404, 404, 200)),
        (b"/docs", HTML, (404, 307, 307)),
        (b"/docs", ANY, (404, 404, 307)),
        (b"/landing/landing.js", ANY, (404, 200, 200)),
        (b"/landing/page.css", ANY, (404, 200, 200)),
        (b"/landing/app.js", ANY, (404, 404, 404)),
        (b"/landing/../api.py", ANY, (404, 404, 404)),
        (b"/landing/%2e%2e/api.py", ANY, (404, 404, 404)),
        (b"/landing/", ANY, (404, 404, 404)),
        (b"/landing", ANY, (404, 404, 404)),
        (b"/double", HTML, (404, 404, 404)),
        (b"//", ANY, (404, 404, 404)),
        (b"/v2", HTML, (200, 200, 200)),
        (b"/v2/models/double", HTML, (200, 200, 200)),
        (b"/v2/models/double/nothing", ANY, (404, 404, 404)),
    ],
)
def test_paths_are_answered_by_the_setting(path, accept, statuses):
    answers = [ask(service_with(each), get(path, accept)) for each in ("none", "browsers", "all")]

    assert tuple(answer.status for answer in answers) == statuses


def test_others_than_browsers_get_tritons_answer_for_unknown_paths():
    assert error(ask(service_with("all"), get(b"/double", ANY))) == "Not Found"


def test_browser_gets_a_page_that_runs_no_foreign_code():
    answer = ask(service_with("browsers"), get(b"/", HTML))

    assert answer.headers[b"Content-Type"] == b"text/html; charset=utf-8"
    assert b"default-src 'self'" in answer.headers[b"Content-Security-Policy"]
    assert answer.headers[b"X-Frame-Options"] == b"DENY"
    assert answer.headers[b"Vary"] == b"Accept-Encoding, Accept"
    assert b"<script src=" in answer.body
    for name, file in api.static_files().items():
        text = file.content.decode().replace("http://www.w3.org/", "")
        assert "innerHTML" not in text, name
        assert "https://" not in text, name
        assert " style=" not in text, name


@pytest.mark.parametrize(
    "host, http", [("example.org:9000", "example.org:9000"), ("example.org", "example.org")]
)
def test_other_clients_get_the_addresses_as_they_know_the_machine(host, http):
    request = f"GET / HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n"
    answer = ask(service_with("all"), request.encode())

    assert json.loads(answer.body) == {
        "name": "triton",
        "version": "2.73.0",
        "http": f"http://{http}",
        "grpc": "grpc://example.org:8001",
        "metrics": "http://example.org:8002/metrics",
        "page": "http://example.org:8002/",
        "docs": f"http://{http}/docs",
        "openapi": f"http://{http}/openapi.json",
    }


@pytest.mark.parametrize("path", [b"/", b"/docs", b"/openapi.json", b"/landing/models"])
def test_page_is_for_reading(path):
    answer = ask(service_with("all"), post(b"{}", path))

    assert answer.status == 405
    assert answer.headers[b"Allow"] == b"GET, HEAD"


@pytest.mark.parametrize("path", [b"/", b"/openapi.json", b"/landing/models", b"/landing/models?x"])
def test_documents_need_the_header_of_restricted_metadata(path):
    answer = ask(service_with("all", http_restricted=(SECRET,)), get(path, ANY))

    assert answer.status == 403
    assert error(answer) == "This API is restricted, expecting header 'key'"


def test_restricted_addresses_open_with_the_header():
    service = service_with("all", http_restricted=(SECRET,))

    assert ask(service, get(b"/", ANY, b"key: sesame")).status == 200
    assert ask(service, get(b"/", HTML)).status == 200  # the page itself says nothing


@pytest.mark.parametrize(
    "path, hint",
    [
        (b"/double", b"<code>/v2/models/double/generate</code>"),
        (b"/duble", b"<code>/v2/models/double/generate</code>"),
        (b"/models/double/", b"<code>/v2/models/double/generate</code>"),
        (b"/nothing-like-it", b"whose paths begin with /v2"),
    ],
)
def test_unknown_path_in_a_browser_says_where_the_model_is(path, hint):
    answer = ask(service_with("browsers"), get(path, HTML))

    assert answer.status == 404
    assert answer.headers[b"Content-Type"] == b"text/html; charset=utf-8"
    assert hint in answer.body


def test_unknown_path_does_not_tell_names_without_the_header():
    service = service_with("browsers", http_restricted=(SECRET,))

    assert b"/v2/models/double" not in ask(service, get(b"/double", HTML)).body
    assert b"/v2/models/double" in ask(service, get(b"/double", HTML, b"key: sesame")).body


@pytest.mark.parametrize("path", [b"/<script>", b"/%3Cscript%3E", b'/"onload="', b"/%ff%00"])
def test_unknown_path_is_shown_as_text(path):
    answer = ask(service_with("browsers"), get(path, HTML))

    assert answer.status == 404
    assert b"<script>" not in answer.body
    assert b'"onload' not in answer.body


def test_long_path_is_cut():
    assert len(ask(service_with("browsers"), get(b"/" + b"x" * 5000, HTML)).body) < 2000
