# SPDX-License-Identifier: Apache-2.0
"""Answers keep the order of requests, and both directions have limits."""

from __future__ import annotations

from pytriton.serving.server.http.http1_connection import MAX_PIPELINED
from tests.fake_network import HIGH_WATER_BYTES
from tests.server.http_fakes import Client, get

# Pipelining


def test_answers_keep_the_order_of_requests(client, sizes):
    client.send(get(b"/later1") + get(b"/a") + get(b"/later2") + get(b"/b"), sizes)
    client.loop.run()

    assert client.received == b""

    client.handler.later[0].answer(b"1")
    client.loop.run()

    assert client.bodies() == [b"1", b"GET /a "]

    client.handler.later[1].answer(b"2")
    client.loop.run()

    assert client.bodies() == [b"1", b"GET /a ", b"2", b"GET /b "]


def test_request_that_arrives_while_another_is_due_waits_for_it(client):
    client.send(get(b"/later") + get(b"/a"))
    client.handler.later[0].answer()
    # The loop has not come to the waiting request yet when the next one is read.
    client.connection.get_buffer(-1)[: len(get(b"/b"))] = get(b"/b")
    client.connection.buffer_updated(len(get(b"/b")))
    client.loop.run()

    assert client.bodies() == [b"later", b"GET /a ", b"GET /b "]


def test_pipeline_limit_stops_reading_and_goes_on_later(client):
    client.send(get(b"/later") + get(b"/a") * MAX_PIPELINED)

    assert not client.transport.is_reading

    client.send(get(b"/b") * 10)

    assert client.unread_bytes == len(get(b"/b")) * 10

    client.handler.later[0].answer()
    client.deliver()

    assert client.bodies() == [b"later"] + [b"GET /a "] * MAX_PIPELINED + [b"GET /b "] * 10


def test_many_pipelined_requests_are_answered_without_nesting(client):
    client.send(get(b"/later") + get(b"/a") * 5000)
    client.handler.later[0].answer()
    client.deliver()

    assert client.bodies() == [b"later"] + [b"GET /a "] * 5000


def test_pipelined_request_is_not_stalled_while_reading_is_paused():
    client = Client(body_stall_timeout_s=5, header_timeout_s=5)
    client.send(get(b"/later") + get(b"/a") * MAX_PIPELINED + b"GET /b HT")
    client.loop.advance(100)

    assert client.received == b""

    client.handler.later[0].answer()
    client.deliver()
    client.send(b"TP/1.1\r\nHost: h\r\n\r\n")

    assert client.bodies()[-1] == b"GET /b "


# Flow control


def test_client_that_reads_nothing_stops_being_read(client):
    client.transport.peer_reads = False
    client.send(get(b"/big") * 50)

    assert len(client.handler.requests) == 1
    assert not client.transport.is_reading
    assert len(client.transport.unsent) < 2 << 20

    client.transport.peer_reads = True
    client.transport.take()
    client.deliver()

    assert client.statuses() == [200] * 50


def test_small_answers_to_a_client_that_reads_nothing_are_bounded(client):
    client.transport.peer_reads = False
    client.send(get(b"/small") * 100_000)

    assert len(client.transport.unsent) < HIGH_WATER_BYTES + 4096
    assert client.unread_bytes > 3_000_000


def test_exchange_is_told_when_its_client_is_slow_and_when_it_caught_up(client):
    client.send(get(b"/later"))
    exchange = client.handler.later[0]
    client.transport.peer_reads = False
    client.connection.begin_stream(200, b"text/plain")
    client.connection.stream(bytes(HIGH_WATER_BYTES))

    assert exchange.events == ["pause"]

    client.transport.take(HIGH_WATER_BYTES)

    assert exchange.events == ["pause", "resume"]


def test_exchange_that_begins_while_its_client_is_slow_is_told(client):
    class Slow(type(client.handler)):
        def handle(self, connection, request):
            exchange = super().handle(connection, request)
            connection.begin_stream(200, b"text/plain")
            connection.stream(bytes(HIGH_WATER_BYTES))
            return exchange

    client.handler.__class__ = Slow
    client.transport.peer_reads = False
    client.send(get(b"/later"))

    assert client.handler.later[0].events == ["pause"]
