# SPDX-License-Identifier: Apache-2.0
"""Limits of the server over HTTP/2: memory of bodies, connections by address; and pages by CORS."""

from __future__ import annotations

import gc

import pytest

from pytriton.protocol.http2 import Http2ErrorCode
from pytriton.serving.server.api.origins import BrowserOptions
from pytriton.serving.server.http.request import LARGE_BODY_BYTES
from tests.server.http2_fakes import Http2Client, as_http1, head, length
from tests.server.http_fakes import Client
from tests.server.http_models import INFER, Service, infer_body
from tests.wire.http2.frame_client import rst_stream

BUDGET = 1_000_000
SMALL = 1000
MEDIUM = 20_000


def limited(budget: int = BUDGET) -> Http2Client:
    client = Http2Client()
    client.handler.request_memory.limit_bytes = budget
    return client


def used(client: Http2Client) -> int:
    gc.collect()
    return client.handler.request_memory.used_bytes


def begin(client: Http2Client, size: int, *, is_announced: bool = True) -> int:
    lines = [(b"content-length", b"%d" % size)] if is_announced else []
    return client.open(head(b"/later", *lines, method=b"POST"))


@pytest.mark.parametrize("is_announced", [True, False])
@pytest.mark.parametrize("size", [MEDIUM, LARGE_BODY_BYTES + 1, 500_000])
def test_body_counts_until_it_is_answered(size, is_announced):
    client = limited()
    stream_id = begin(client, size, is_announced=is_announced)

    assert used(client) == 0

    client.send_data(stream_id, bytes(size // 2))

    assert used(client) == size // 2
    client.send_data(stream_id, bytes(size - size // 2), end_stream=True)
    assert used(client) == size
    (later,) = client.handler.later
    later.answer()
    client.handler.later.clear()
    client.handler.requests.clear()
    del later
    assert client.answer(stream_id).status == 200
    assert used(client) == 0


def test_small_bodies_do_not_count():
    client = limited(budget=10)
    streams = [client.post(bytes(SMALL), b"/a") for _ in range(10)]

    assert {client.answer(each).status for each in streams} == {200}
    assert used(client) == 0


@pytest.mark.parametrize("is_announced", [True, False])
def test_small_body_counts_while_it_is_incomplete(is_announced):
    client = limited()
    stream_id = begin(client, SMALL, is_announced=is_announced)
    client.send_data(stream_id, bytes(SMALL - 1))

    assert used(client) == SMALL - 1

    client.send_data(stream_id, bytes(1), end_stream=True)
    assert len(client.handler.later) == 1
    assert used(client) == 0


def test_incomplete_small_bodies_take_no_more_than_the_budget():
    client = limited(budget=5 * SMALL)
    streams = [begin(client, SMALL) for _ in range(20)]
    for each in streams:
        client.send_data(each, bytes(SMALL - 1))

        assert used(client) <= 5 * SMALL

    assert [client.reply(each).status for each in streams] == [0] * 5 + [503] * 15


@pytest.mark.parametrize("is_announced", [True, False])
def test_body_beyond_the_budget_is_refused_alone(is_announced):
    client = limited()
    kept = begin(client, 700_000)
    client.send_data(kept, bytes(600_000))
    refused = begin(client, 500_000, is_announced=is_announced)
    client.send_data(refused, bytes(500_000), end_stream=True)
    reply = client.reply(refused)

    assert reply.status == 503
    assert reply.headers[b"retry-after"] == b"1"
    assert b"no memory for this request now" in reply.body
    assert used(client) == 600_000
    client.send_data(kept, bytes(100_000), end_stream=True)
    assert len(client.handler.later) == 1


@pytest.mark.parametrize("size", [MEDIUM, 500_000])
@pytest.mark.parametrize("end", ["reset", "connection", "server"])
def test_memory_of_a_body_that_does_not_end_is_given_back(size, end):
    client = limited()
    stream_id = begin(client, size)
    client.send_data(stream_id, bytes(size - 1))

    assert used(client) == size - 1

    if end == "reset":
        client.send(rst_stream(stream_id))
    elif end == "connection":
        client.reset()
    else:
        client.connection.end()
    assert used(client) == 0


def test_many_bodies_of_medium_size_count():
    client = limited()
    streams = []
    for _ in range(60):
        streams.append(begin(client, MEDIUM))
        client.send_data(streams[-1], bytes(MEDIUM), end_stream=True)
    assert [client.reply(each).status for each in streams] == [0] * 50 + [503] * 10


def test_large_body_is_refused_where_none_is_expected():
    service = Service()
    client = Http2Client(service.api)
    for target, status in ((b"/v2/repository/index", 400), (b"/nothing", 404), (INFER, 0)):
        fields = head(target, (b"content-length", b"100000"), method=b"POST")
        stream_id = client.open(fields)

        assert client.reply(stream_id).status == status
        if status:
            assert client.reply(stream_id).reset == Http2ErrorCode.NO_ERROR
    assert service.api.refusals["http_body_bytes"] == 1


def test_refusals_are_counted_by_their_limit():
    client = Http2Client(http_max_input_bytes=10, body_stall_timeout_s=5)
    client.get(b"/", (b"x", b"x" * 70_000))
    client.post(bytes(11))
    client.get(b"/", (b"origin", b"http://evil"), method=b"PUT")
    client.open(head(b"/a", method=b"POST"))
    client.loop.advance(10)

    assert dict(client.handler.refusals) == {
        "http_header_bytes": 1,
        "http_body_bytes": 1,
        "http_request_time": 1,
    }
    assert client.handler.origins.refused_count == 1


def test_client_counts_once_for_its_address():
    left = []
    client = Client()
    client.handler.connections.on_left = left.append
    client.connection.client_ticket = "address"
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")

    assert left == []

    client.reset()

    assert left == ["address"]


# CORS

APP = b"https://app.example.com"
PAGE = ((b"origin", APP), (b"sec-fetch-site", b"cross-site"))
ASKING = ((b"origin", APP), (b"access-control-request-method", b"POST"))


@pytest.mark.parametrize(
    "method, target, body, more",
    [
        (b"GET", b"/v2", b"", PAGE),
        (b"GET", b"/nothing", b"", PAGE),
        (b"POST", INFER, b"{", PAGE),
        (b"POST", INFER, bytes(200_000_000)[:1], ((b"origin", b"https://evil"),)),
        (b"OPTIONS", INFER, b"", ASKING),
        (b"OPTIONS", INFER, b"", ((b"origin", b"https://evil"), ASKING[1])),
        (b"GET", b"/v2", b"", ()),
    ],
)
def test_pages_of_other_origins_get_the_same_headers(method, target, body, more):
    answers = []
    lines = [length(body)] if body else []
    fields = head(target, *lines, *more, method=method)
    for is_http2 in (False, True):
        service = Service(browsers=BrowserOptions(allow_origins=(APP.decode(),)))
        client = Http2Client(service.api) if is_http2 else Client(service.api)
        if is_http2:
            client.send(client.request(fields, body)[1])
            reply = client.answer(1)
            answers.append((reply.status, reply.headers))
        else:
            client.send(as_http1(fields, body))
            lines_1 = bytes(client.received).partition(b"\r\n\r\n")[0].split(b"\r\n")
            headers = dict(line.split(b": ", 1) for line in lines_1[1:])
            headers.pop(b"Connection", None)
            status = int(lines_1[0].split()[1])
            answers.append((status, {name.lower(): value for name, value in headers.items()}))

    assert answers[0] == answers[1]


def test_inference_for_a_page_has_its_headers_however_often_it_is_asked():
    service = Service(browsers=BrowserOptions(allow_origins=(APP.decode(),)))
    client = Http2Client(service.api)
    for _ in range(3):
        stream_id = client.post(infer_body(1), b"/v2/models/stream/generate_stream", *PAGE)

        assert client.answer(stream_id).headers[b"access-control-allow-origin"] == APP
