# SPDX-License-Identifier: Apache-2.0
"""Requests that must not be understood in two ways (RFC 9112), and requests without end."""

from __future__ import annotations

import ctypes
import json
import logging
import mmap

import numpy as np
import pytest

from pytriton.serving.server.options.server_options import ClientLimits
from tests.fake_network import DELIVERIES, random_sizes
from tests.server.http_fakes import Client, FakeLoop, ScriptedHandler, chunked, get, post


def line(text: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: h\r\n" + text + b"\r\n\r\n0\r\n\r\n"


def in_chunks(text: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + text


REFUSED = {
    "two lengths": (400, line(b"Content-Length: 5\r\nContent-Length: 6")),
    "two equal lengths": (400, line(b"Content-Length: 5\r\nContent-Length: 5")),
    "a list of lengths": (400, line(b"Content-Length: 5, 5")),
    "a signed length": (400, line(b"Content-Length: +5")),
    "a negative length": (400, line(b"Content-Length: -5")),
    "a hexadecimal length": (400, line(b"Content-Length: 0x5")),
    "a length with underscores": (400, line(b"Content-Length: 1_0")),
    "a fractional length": (400, line(b"Content-Length: 5.0")),
    "an empty length": (400, line(b"Content-Length:")),
    "a length beyond 64 bits": (400, line(b"Content-Length: 18446744073709551616")),
    "a length beyond the limit": (400, line(b"Content-Length: 18446744073709551615")),
    "coding and length": (400, line(b"Content-Length: 5\r\nTransfer-Encoding: chunked")),
    "length after coding": (400, line(b"Transfer-Encoding: chunked\r\nContent-Length: 5")),
    "chunked twice": (400, line(b"Transfer-Encoding: chunked, chunked")),
    "chunked in two headers": (400, line(b"Transfer-Encoding: chunked\r\n" * 2)),
    "chunked not last": (400, line(b"Transfer-Encoding: chunked, gzip")),
    "another coding": (501, line(b"Transfer-Encoding: gzip, chunked")),
    "only another coding": (400, line(b"Transfer-Encoding: gzip")),
    "identity coding": (400, line(b"Transfer-Encoding: identity")),
    "an unknown coding": (400, line(b"Transfer-Encoding: xchunked")),
    "a disguised coding": (400, line(b"Transfer-Encoding: \x0bchunked")),
    "a blank before the colon": (400, line(b"Transfer-Encoding : chunked")),
    "coding of HTTP 1.0": (400, in_chunks(b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")),
    "a folded value": (400, line(b"X: a\r\n b")),
    "a folded coding": (400, line(b"Transfer-Encoding:\r\n chunked")),
    "a folded first line": (400, b"GET / HTTP/1.1\r\n X: a\r\n\r\n"),
    "bare line feeds": (400, b"GET / HTTP/1.1\nHost: h\n\n"),
    "a bare line feed in a head": (400, line(b"X: a\nY: b")),
    "a bare line feed at the end": (400, b"GET / HTTP/1.1\r\nHost: h\r\n\n"),
    "a bare carriage return": (400, line(b"X: a\rY: b")),
    "NUL in a value": (400, line(b"X: a\0b")),
    "NUL in a name": (400, line(b"X\0: a")),
    "NUL in the target": (400, b"GET /\0 HTTP/1.1\r\n\r\n"),
    "a control character": (400, line(b"X: a\x01b")),
    "no colon": (400, line(b"abc")),
    "no name": (400, line(b": abc")),
    "a blank in a name": (400, line(b"a b: c")),
    "no host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "no host but a body": (400, b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"),
    "a host with a blank": (400, b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n"),
    "a host with a path": (400, b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"),
    "a host beyond ASCII": (400, b"GET / HTTP/1.1\r\nHost: \xc3\xa9\r\n\r\n"),
    "two equal hosts": (400, b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
    "two hosts": (400, b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    "a blank in the target": (400, b"GET /a b HTTP/1.1\r\n\r\n"),
    "a tab in the target": (400, b"GET /a\tb HTTP/1.1\r\n\r\n"),
    "bytes beyond ASCII in the target": (400, b"GET /\xc3\xa9 HTTP/1.1\r\n\r\n"),
    "an authority as target": (400, b"GET h:80 HTTP/1.1\r\n\r\n"),
    "an unknown method": (400, b"FETCH / HTTP/1.1\r\n\r\n"),
    "a method in lower case": (400, b"get / HTTP/1.1\r\n\r\n"),
    "a tunnel": (501, b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n"),
    "a tunnel with a length": (501, b"CONNECT h:80 HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"),
    "HTTP 0.9 without a version": (505, b"GET /\r\n\r\n"),
    "HTTP 0.9": (505, b"GET / HTTP/0.9\r\n\r\n"),
    "HTTP 1.2": (400, b"GET / HTTP/1.2\r\n\r\n"),
    "HTTP 2.0": (505, b"GET / HTTP/2.0\r\n\r\n"),
    "HTTP 2's preface with a fault": (400, b"PRI * HTTP/2.0\r\n\r\nSN\r\n\r\n"),
    "a TLS handshake": (400, bytes.fromhex("16030102000100")),
    "another expectation": (417, post(b"x", b"/", b"Expect: 200-ok")),
    "two expectations": (417, post(b"x", b"/", b"Expect: 100-continue", b"Expect: 200-ok")),
    "a chunk size with a prefix": (400, in_chunks(b"0x1\r\na\r\n0\r\n\r\n")),
    "a negative chunk size": (400, in_chunks(b"-1\r\na\r\n0\r\n\r\n")),
    "an empty chunk size": (400, in_chunks(b"\r\na\r\n0\r\n\r\n")),
    "a chunk size and a blank": (400, in_chunks(b"1 \r\na\r\n0\r\n\r\n")),
    "a chunk size beyond 64 bits": (400, in_chunks(b"10000000000000001\r\na\r\n0\r\n\r\n")),
    "a line feed after a chunk size": (400, in_chunks(b"1\na\r\n0\r\n\r\n")),
    "a line feed in an extension": (400, in_chunks(b"1;a\nb\r\na\r\n0\r\n\r\n")),
    "a chunk longer than it says": (400, in_chunks(b"1\r\nab\r\n0\r\n\r\n")),
    "a length among the trailers": (400, in_chunks(b"0\r\nContent-Length: 5\r\n\r\n")),
    "a coding among the trailers": (400, in_chunks(b"0\r\nTransfer-Encoding: chunked\r\n\r\n")),
}


@pytest.fixture
def client():
    return Client()


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, delivery):
    status, text = REFUSED[name]
    client = Client()
    client.send(text + get(b"/smuggled"), DELIVERIES[delivery]())

    (answer,) = client.answers()
    assert answer.status == status
    assert answer.headers[b"Connection"] == b"close"
    assert answer.headers[b"Content-Type"] == b"application/json"
    assert json.loads(answer.body).keys() == {"error"}
    assert client.saw_end
    assert client.handler.requests == []


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("name", REFUSED)
def test_refused_after_what_came_before_it_is_answered(name, delivery):
    status, text = REFUSED[name]
    client = Client()
    client.send(get(b"/a") + get(b"/later") + get(b"/b") + text, DELIVERIES[delivery]())

    assert client.bodies() == [b"GET /a "]
    assert not client.saw_end

    client.handler.later[0].answer()
    client.loop.run()

    assert client.bodies()[:-1] == [b"GET /a ", b"later", b"GET /b "]
    assert client.statuses()[-1] == status
    assert client.saw_end


def test_http2_does_not_begin_after_a_request(client):
    client.send(get(b"/a"))
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

    assert client.statuses() == [200, 505]
    assert b"the whole connection preface of HTTP/2" in client.bodies()[1]


@pytest.mark.parametrize("method", [b"OPTIONS", b"GET"])
def test_asterisk_is_a_target_like_any_other(client, method):
    client.send(b"%b * HTTP/1.1\r\nHost: h\r\n\r\n" % method)

    assert client.bodies() == [b"%b * " % method]


# Limits


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize(
    "text",
    [
        get(b"/", b"X: " + b"x" * 3000),
        get(b"/" + b"x" * 3000),
        get(b"/", *[b"a:"] * 100),
        b"GET / HTTP/1.1\r\nX: " + b"x" * 90_000,
        b"GET / HTTP/1.1\r\n" + b"x" * 90_000,
        b"GET /" + b"x" * 90_000,
    ],
    ids=["value", "target", "count", "value without end", "name without end", "target without end"],
)
def test_head_beyond_the_limit_is_refused_however_it_arrives(text, delivery):
    client = Client(http_max_header_bytes=2000)
    client.send(text, DELIVERIES[delivery]())

    assert client.statuses() == [431]
    assert client.handler.requests == []


def test_long_pipeline_before_part_of_a_head_does_not_count_as_head():
    client = Client(http_max_header_bytes=200)
    client.send(get(b"/a") * 1000 + get(b"/b")[:5])
    client.send(get(b"/b")[5:])

    assert client.statuses() == [200] * 1001


_JSON_LENGTH = b"Inference-Header-Content-Length: %d"


@pytest.mark.parametrize(
    "text, problem",
    [
        (
            post(bytes(1001)),
            b"request JSON size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes",
        ),
        (
            post(bytes(1001), b"/v2/models/m/generate?x", _JSON_LENGTH % 9),
            b"request JSON size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes",
        ),
        (
            post(bytes(1001), b"/v2/models/m/generate_stream", _JSON_LENGTH % 0),
            b"request JSON size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes",
        ),
        (
            chunked(bytes(900), bytes(101)),
            b"request JSON size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes",
        ),
        (
            post(bytes(1001), b"/", _JSON_LENGTH % 0),
            (
                b"Raw input has a byte_size (1001 bytes) that exceeds the maximum allowed value of "
                b"1000 bytes"
            ),
        ),
        (
            post(bytes(1001), b"/", _JSON_LENGTH % 9),
            b"request size of 1001 bytes exceeds the maximum allowed value of 1000 bytes",
        ),
        (
            post(bytes(1001), b"/", b"Content-Encoding: gzip"),
            b"request size of 1001 bytes exceeds the maximum allowed value of 1000 bytes",
        ),
    ],
    ids=["JSON", "generate", "stream", "chunks", "raw", "binary", "compressed"],
)
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_body_beyond_the_limit_is_refused(text, problem, delivery):
    client = Client(http_max_input_bytes=1000)
    client.send(text, DELIVERIES[delivery]())

    (answer,) = client.answers()
    assert answer.status == 400
    assert problem + b". Use --http-max-input-size to increase the limit." in answer.body
    assert client.handler.requests == []


@pytest.mark.parametrize("text", [post(bytes(1000)), chunked(bytes(900), bytes(100))])
def test_body_at_the_limit_is_taken(text):
    client = Client(http_max_input_bytes=1000)
    client.send(text)

    assert client.statuses() == [200]


def test_refused_body_is_not_asked_for():
    client = Client(http_max_input_bytes=1000)
    client.send(post(bytes(1001), b"/", b"Expect: 100-continue").partition(b"\0")[0])

    assert client.statuses() == [400]


def test_million_chunks_of_one_byte_are_refused(client):
    head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    client.send(head + b"1\r\nx\r\n" * 1_000_000)

    (answer,) = client.answers()
    assert answer.status == 400
    assert json.loads(answer.body)["error"] == (
        "Chunked request body exceeds maximum of 65536 non-empty chunks. "
        "Send fewer or larger HTTP chunks."
    )
    assert client.saw_end


def test_as_many_chunks_as_allowed_are_taken():
    client = Client(http_max_chunks=100)
    client.send(chunked(*[b"x"] * 100))
    client.send(chunked(*[b"x"] * 101))

    assert client.statuses() == [200, 400]


@pytest.mark.parametrize(
    "text",
    [
        b"1;" + b"x" * 1000 + b"\r\na\r\n",
        b"0" * 1000,
        b"1\r\na\r\n0\r\nX: " + b"x" * 1000,
        b"0\r\n" + b"a: b\r\n" * 1000,
    ],
    ids=["extension", "zeros", "trailer", "trailers"],
)
def test_framing_of_chunks_without_end_is_refused(text):
    client = Client(http_max_header_bytes=500)
    client.send(in_chunks(b""))
    client.send(text, random_sizes(5))

    assert client.statuses() == [400]
    assert b"chunk extensions and trailers exceed the maximum of 500 bytes" in client.bodies()[0]


def test_length_with_many_zeros_is_a_length(client):
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"0" * 5000 + b"1\r\n\r\nx")

    assert client.bodies() == [b"POST / x"]


def resident_bytes(memory: memoryview) -> int:
    """How much of a part of this process's memory has pages."""
    begin = np.frombuffer(memory, np.uint8).ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    pages = np.zeros(len(memory) // mmap.PAGESIZE, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    size = ctypes.c_size_t(len(pages) * mmap.PAGESIZE)
    if libc.mincore(ctypes.c_void_p(begin), size, ctypes.c_void_p(pages.ctypes.data)):
        raise OSError(ctypes.get_errno(), "mincore")
    return int(np.count_nonzero(pages & 1)) * mmap.PAGESIZE


def test_announced_bodies_take_no_memory():
    handler = ScriptedHandler(ClientLimits(http_max_input_bytes=4 << 30), FakeLoop())
    clients = [Client(handler) for _ in range(20)]
    for client in clients:
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\nxyz" % (2 << 30))
    bodies = [client.connection._reader.body.memory for client in clients]

    assert [len(each) for each in bodies] == [2 << 30] * 20
    assert max(map(resident_bytes, bodies)) <= 4 << 20  # what came may lie in a huge page


def test_body_that_no_memory_is_left_for_is_refused(client, monkeypatch):
    def fail(head, asking):
        raise MemoryError

    monkeypatch.setattr(client.handler, "body_memory", fail)
    client.send(post(bytes(100_000)))

    assert client.statuses() == [503]


def test_mistake_in_reading_is_logged_and_answered(client, caplog, monkeypatch):
    monkeypatch.setattr(client.connection._reader, "_limits", None)
    with caplog.at_level(logging.ERROR):
        client.send(get(b"/a"))

    assert client.statuses() == [500]
    assert "an HTTP request could not be read" in caplog.text


def test_refusal_over_a_transport_without_half_close_ends_the_connection(client, monkeypatch):
    monkeypatch.setattr(client.transport, "can_write_eof", lambda: False)
    client.send(b"garbage\r\n\r\n")

    assert client.statuses() == [400]
    assert client.transport.is_lost


@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a_b.example-1:80\r\n\r\n",
    ],
)
def test_request_needs_a_host_only_where_http_says_so(client, text):
    client.send(text)

    assert client.statuses() == [200]
