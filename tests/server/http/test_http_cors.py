# SPDX-License-Identifier: Apache-2.0
"""Answers to pages of other origins: the headers of CORS on every kind of answer."""

from __future__ import annotations

import pytest

from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.serving.server.api.origins import BrowserOptions
from pytriton.serving.server.http.columns import LEARNED_AFTER
from pytriton.serving.server.options.server_options import ClientLimits
from tests.server.http_fakes import get, post
from tests.server.http_models import INFER, Service, ask, error, floats, infer_body, text

APP = b"https://app.example.com"
ORIGIN = (b"Origin: " + APP, b"Sec-Fetch-Site: cross-site")
ALLOWED = b"Access-Control-Allow-Origin"
BROWSERS = BrowserOptions(allow_origins=(APP.decode(),))


def service(limits: ClientLimits | None = None, **options) -> Service:
    return Service(limits, browsers=BROWSERS, **options)


def options_request(*lines: bytes, target: bytes = INFER, origin: bytes = APP) -> bytes:
    asked = (b"Origin: " + origin, b"Access-Control-Request-Method: POST", *lines)
    return b"\r\n".join((b"OPTIONS %b HTTP/1.1" % target, b"Host: h", *asked, b"", b""))


def infer(found: Service, *lines: bytes):
    client = found.connect()
    client.send(post(infer_body(1.0), INFER, *lines))
    found.loop.run()
    found.double.answer(floats(2.0))
    found.double.inferences.clear()
    client.deliver()
    return client.answers()[0]


@pytest.mark.parametrize("target", [INFER, b"/v2", b"/v1/chat/completions", b"/no/such/path"])
def test_preflight_is_answered_without_a_token_and_without_the_engine(target):
    group = RestrictedGroup(apis=("inference", "metadata"), header="key", value="secret")
    found = service(http_restricted=(group,))
    client = found.connect()

    client.send(options_request(b"Access-Control-Request-Headers: key", target=target))

    head = bytes(client.received)
    assert head.startswith(b"HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Origin: " + APP)
    assert b"Access-Control-Allow-Headers: key\r\n" in head
    assert b"Content-Length" not in head
    assert b"Content-Type" not in head
    assert head.count(ALLOWED) == 1
    assert not client.saw_end  # the request follows on this connection


def test_preflight_of_another_origin_gets_an_error_without_permission():
    answer = ask(service(), options_request(origin=b"https://evil.example"))

    assert answer.status == 403
    assert error(answer) == "Origin 'https://evil.example' is none of --cors-allow-origins"
    assert ALLOWED not in answer.headers


def test_without_settings_a_preflight_is_a_wrong_method():
    answer = ask(Service(), options_request())

    assert answer.status == 405
    assert not [name for name in answer.headers if name.startswith(b"Access-Control")]


def test_options_request_that_is_no_preflight_is_a_wrong_method():
    assert ask(service(), b"OPTIONS /v2 HTTP/1.1\r\nHost: h\r\n\r\n").status == 405


def test_inference_of_an_allowed_page_is_served_and_readable():
    answer = infer(service(), *ORIGIN)

    assert answer.status == 200
    assert answer.headers[ALLOWED] == APP
    assert answer.headers[b"Vary"] == b"Origin"


def test_inference_of_another_page_is_refused():
    answer = ask(service(), post(infer_body(1.0), INFER, b"Origin: https://evil.example"))

    assert answer.status == 403
    assert ALLOWED not in answer.headers
    assert answer.headers[b"Vary"] == b"Origin"


def test_requests_of_pages_keep_their_headers_when_others_travel_as_columns():
    found = service()
    for _ in range(LEARNED_AFTER + 2):
        assert ALLOWED not in infer(found).headers

    for _ in range(LEARNED_AFTER + 2):
        assert infer(found, *ORIGIN).headers[ALLOWED] == APP


def test_without_settings_requests_with_an_origin_travel_as_columns():
    found = Service()
    for _ in range(LEARNED_AFTER + 2):
        answer = infer(found, b"Origin: http://h")

    assert answer.headers.keys() == {b"Content-Type", b"Content-Length"}
    heads = [head.resolved for head in found.api.cached_heads.values()]
    assert [resolved.forms is not None for resolved in heads] == [True]


@pytest.mark.parametrize(
    "request_, status",
    [
        (get(b"/v2", *ORIGIN), 200),
        (get(b"/v2/models/none", *ORIGIN), 404),
        (get(b"/no/such/path", *ORIGIN), 404),
        (get(b"/v2/models/double/infer", *ORIGIN), 405),
        (get(b"/v2/models/double/config", *ORIGIN), 403),
        (post(b"{", INFER, *ORIGIN), 500),
        (post(b"", INFER, *ORIGIN).replace(b"Length: 0", b"Length: 99999"), 400),
        (post(b"", INFER, *ORIGIN, b"Expect: tea"), 417),
        (post(b"", INFER, *ORIGIN, b"X: " + b"x" * 1000), 431),
    ],
)
def test_every_answer_can_be_read_by_an_allowed_page(request_, status):
    limits = ClientLimits(http_max_input_bytes=1000, http_max_header_bytes=900)
    group = RestrictedGroup(apis=("model-config",), header="key", value="secret")

    answer = ask(service(limits, http_restricted=(group,)), request_)

    assert answer.status == status
    assert answer.headers[ALLOWED] == APP


def test_stream_can_be_read_by_an_allowed_page():
    found = service()
    client = found.connect()
    body = b'{"prompt": "a"}'
    client.send(post(body, b"/v2/models/stream/generate_stream", *ORIGIN))
    found.stream.answer(text("b"), final=True)

    answer = client.deliver().answers()[0]
    assert answer.headers[b"Content-Type"].startswith(b"text/event-stream")
    assert answer.headers[ALLOWED] == APP


def test_answers_to_programs_vary_only_if_pages_are_allowed():
    assert b"Vary" not in ask(Service(), get(b"/v2")).headers
    assert ask(service(), get(b"/v2")).headers[b"Vary"] == b"Origin"
