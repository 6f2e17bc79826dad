# SPDX-License-Identifier: Apache-2.0
"""How bytes become requests, by the long way and by the short ones."""

from __future__ import annotations

import pytest

from pytriton.serving.server.http.http1_connection import READ_BYTES
from pytriton.serving.server.http.reader import MAX_CACHED_HEAD_BYTES, MAX_CACHED_HEADS
from pytriton.serving.server.http.request import LARGE_BODY_BYTES
from tests.fake_network import random_sizes
from tests.server.http_fakes import Client, chunked, get, post

# Framing


@pytest.mark.parametrize(
    "request_bytes,echo",
    [
        (get(b"/a"), b"GET /a "),
        (get(b"/a?b=c"), b"GET /a?b=c "),
        (post(b"hello"), b"POST / hello"),
        (post(b""), b"POST / "),
        (post(b"\r\n\r\nGET / HTTP/1.1\r\n\r\n"), b"POST / \r\n\r\nGET / HTTP/1.1\r\n\r\n"),
        (chunked(b"he", b"l", b"lo"), b"POST / hello"),
        (chunked(), b"POST / "),
        (chunked(b"hello", trailers=b"X-Sum: 1\r\nX-More: 2\r\n"), b"POST / hello"),
        (b"\r\n\r\n" + get(b"/a"), b"GET /a "),
    ],
)
def test_request_is_the_same_however_its_bytes_arrive(sizes, request_bytes, echo):
    client = Client()
    client.send(request_bytes * 3, sizes)

    assert client.bodies() == [echo] * 3
    assert client.statuses() == [200] * 3
    assert not client.saw_end


def test_chunk_extensions_are_ignored(client, sizes):
    head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    client.send(head + b'2;a=b\r\nhe\r\n3;c="d;e"\r\nllo\r\n0;f\r\n\r\n', sizes)

    assert client.bodies() == [b"POST / hello"]


def test_trailers_do_not_become_headers(client, sizes):
    client.send(chunked(b"x", trailers=b"Authorization: smuggled\r\nHost: other\r\n"), sizes)

    assert client.statuses() == [200]
    assert client.handler.requests[0].head.headers == {
        b"host": b"h",
        b"transfer-encoding": b"chunked",
    }


def test_repeated_headers_are_joined_and_blanks_around_values_dropped(client):
    client.send(get(b"/", b"Accept:  a \t", b"accept: b", b"X-Empty:"))

    head = client.handler.requests[0].head
    assert head.headers == {b"host": b"h", b"accept": b"a, b", b"x-empty": b""}
    assert head.header_list == [
        (b"Host", b"h"),
        (b"Accept", b"a"),
        (b"accept", b"b"),
        (b"X-Empty", b""),
    ]


def test_blank_lines_between_requests_are_no_requests(client):
    client.send(get(b"/a"))
    client.send(b"\r\n\r\n")
    client.send(b"\r\n\r\n")
    client.send(get(b"/b"))

    assert client.bodies() == [b"GET /a ", b"GET /b "]


def test_absolute_target_reaches_the_handler_as_it_is(client):
    client.send(get(b"http://h/v2"))

    assert client.handler.requests[0].head.target == b"http://h/v2"


def test_head_request_is_answered_without_a_body(client):
    client.send(b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n")

    assert client.received.endswith(b"Content-Length: 8\r\n\r\n")


# Offers to switch protocols


@pytest.mark.parametrize("body", [b"hello", b""])
def test_upgrade_offer_is_declined_and_the_body_read(sizes, body):
    client = Client()
    offer = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")
    client.send(post(body, b"/", *offer) * 2 + get(b"/next"), sizes)

    assert client.bodies() == [b"POST / " + body] * 2 + [b"GET /next "]


def test_upgrade_offer_with_a_chunked_body_is_declined(client, sizes):
    offer = b"Host: h\r\nConnection: upgrade\r\nUpgrade: websocket"
    request = chunked(b"hello").replace(b"Host: h", offer)
    client.send(request + get(), sizes)

    assert client.bodies() == [b"POST / hello", b"GET / "]


def test_a_thousand_upgrade_offers_in_one_read_are_declined(client):
    client.send(get(b"/", b"Connection: upgrade", b"Upgrade: x") * 1000)

    assert client.statuses() == [200] * 1000


# Large bodies


@pytest.mark.parametrize(
    "size",
    [
        LARGE_BODY_BYTES - 1,
        LARGE_BODY_BYTES,
        LARGE_BODY_BYTES + 1,
        READ_BYTES + 1,
        2 * READ_BYTES,
        300_001,
    ],
)
@pytest.mark.parametrize("largest", [1 << 30, 50_000, 4096])
def test_large_body_arrives_whole_between_small_requests(size, largest):
    client = Client()
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    text = get(b"/before") + post(body, b"/large") + get(b"/after")
    client.send(text * 2, random_sizes(size, largest))

    bodies = client.bodies()
    assert bodies[::3] == [b"GET /before "] * 2
    assert bodies[1::3] == [b"POST /large " + body] * 2
    assert bodies[2::3] == [b"GET /after "] * 2


@pytest.mark.parametrize("tail", range(-3, 4))
def test_large_body_may_be_split_around_its_last_bytes(client, tail):
    body = bytes(200_000)
    text = post(body) + get(b"/after")
    at = len(post(body)) + tail
    client.send(text[:at]).send(text[at:])

    assert client.bodies() == [b"POST / " + body, b"GET /after "]


def test_large_body_may_be_split_at_every_byte_around_its_head(client):
    body = bytes(LARGE_BODY_BYTES + 10)
    text = post(body)
    for at in range(text.index(b"\r\n\r\n") + 12):
        client.send(text[:at]).send(text[at:])

    assert set(client.bodies()) == {b"POST / " + body}


def test_large_bodies_of_pipelined_requests_wait_for_their_turn(client):
    body = bytes(100_000)
    client.send(get(b"/later") + post(body, b"/1") + post(body, b"/2"))
    client.handler.later[0].answer()
    client.deliver()

    assert client.bodies() == [b"later", b"POST /1 " + body, b"POST /2 " + body]


# Heads that were seen before


def test_known_head_is_not_parsed_again_and_its_body_is_read_anew(client):
    client.send(post(b"one"))
    client.send(post(b"two"))
    first, second = client.handler.requests

    assert client.bodies() == [b"POST / one", b"POST / two"]
    assert first.head is second.head


def test_known_head_is_known_to_all_connections_of_a_port(client):
    client.send(post(b"one"))
    other = Client(client.handler)
    other.send(post(b"two"))

    assert client.handler.requests[0].head is client.handler.requests[1].head
    assert other.bodies() == [b"POST / two"]


@pytest.mark.parametrize("at", range(1, len(post(b"two"))))
def test_known_head_may_arrive_in_pieces(client, at):
    client.send(post(b"one"))
    client.send(post(b"two")[:at])
    client.send(post(b"two")[at:] + post(b"six"))

    assert client.bodies() == [b"POST / one", b"POST / two", b"POST / six"]


def test_known_head_is_not_parsed_again_if_its_body_comes_later(client):
    request = post(b"one")
    for _ in range(3):
        client.send(request[:-3])
        client.send(b"o")
        client.send(b"ne")

    assert client.bodies() == [b"POST / one"] * 3
    assert len({id(request.head) for request in client.handler.requests}) == 1


def test_body_after_a_known_head_may_be_followed_by_another_request(client):
    client.send(post(b"one"))
    client.send(post(b"two")[:-1])
    client.send(b"o" + post(b"six") + get(b"/a"))

    assert client.bodies() == [b"POST / one", b"POST / two", b"POST / six", b"GET /a "]


def test_head_after_blank_lines_or_another_request_is_not_mistaken(client):
    client.send(b"\r\n\r\n" + post(b"one")[:-1])
    client.send(b"e")
    client.send(get(b"/a") + post(b"two", b"/b")[:-1])
    client.send(b"o")
    for known in client.handler.cached_heads:
        assert known.startswith((b"POST ", b"GET "))
    client.send(get(b"/a"))
    client.send(post(b"two", b"/b"))

    assert client.bodies() == [
        b"POST / one", b"GET /a ", b"POST /b two", b"GET /a ", b"POST /b two"
    ]  # fmt: skip


def test_head_that_announces_another_length_is_another_head(client):
    client.send(post(b"one"))
    client.send(post(b"three"))
    client.send(post(b"one"))

    assert client.bodies() == [b"POST / one", b"POST / three", b"POST / one"]
    assert len(client.handler.cached_heads) == 2


def test_pipelined_known_requests_are_all_answered(client):
    client.send(get(b"/a"))
    client.send(get(b"/a") * 4)
    client.send(get(b"/a") + b"\r\n")
    client.send(get(b"/a")[:-2])
    client.send(b"\r\n")

    assert client.bodies() == [b"GET /a "] * 7


def test_memory_of_heads_is_bounded(client):
    for number in range(MAX_CACHED_HEADS + 10):
        client.send(get(b"/%d" % number))
    client.send(get(b"/", b"X: " + b"x" * MAX_CACHED_HEAD_BYTES))

    assert client.statuses() == [200] * (MAX_CACHED_HEADS + 11)
    assert len(client.handler.cached_heads) <= MAX_CACHED_HEADS
    assert max(map(len, client.handler.cached_heads)) <= MAX_CACHED_HEAD_BYTES


def test_only_heads_that_say_all_about_their_request_are_remembered(client):
    client.send(chunked(b"x"))
    client.send(post(b"x", b"/", b"Expect: 100-continue"))
    client.send(get(b"/", b"Connection: upgrade", b"Upgrade: x"))
    client.send(get(b"/a") + get(b"/b"))
    client.send(b"\r\n\r\n")

    assert all(b"Upgrade" not in head for head in client.handler.cached_heads)
    assert client.statuses() == [200, 100, 200, 200, 200, 200]
    assert [head for head in client.handler.cached_heads if b"GET" not in head] == []


def test_known_head_that_closes_ends_the_connection_again(client):
    for _ in range(2):
        other = Client(client.handler)
        other.send(get(b"/", b"Connection: close"))

        assert other.statuses() == [200]
        assert other.transport.is_lost
