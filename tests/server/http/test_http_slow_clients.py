# SPDX-License-Identifier: Apache-2.0
"""Clients that stand still or trickle, in either direction, are cut off; others are not."""

from __future__ import annotations

import pytest

from pytriton.serving.server.api.pace import LINGER_S, MIN_BYTES_PER_S
from pytriton.serving.server.options.server_options import ClientLimits
from tests.fake_network import HIGH_WATER_BYTES, byte_by_byte
from tests.server.http_fakes import Client, FakeLoop, ScriptedHandler, chunked, get, post


@pytest.mark.parametrize("text", [b"G", get(b"/")[:-1], b"GET / HTTP/1.1\r\nX: "])
def test_head_that_does_not_end_is_cut_off(text):
    client = Client(header_timeout_s=60)
    client.send(text)
    client.loop.advance(59)

    assert client.received == b""

    client.loop.advance(3)

    assert client.statuses() == [408]
    assert client.saw_end


def test_head_that_comes_byte_by_byte_wins_no_time():
    client = Client(header_timeout_s=60)
    text = get(b"/" + b"x" * 1000)
    for at in range(0, len(text), 10):
        client.send(text[at : at + 10])
        client.loop.advance(1)

    assert client.statuses() == [408]
    assert client.handler.requests == []


@pytest.mark.parametrize("text", [post(bytes(100)), post(bytes(100_000)), chunked(bytes(100))])
def test_body_that_stands_still_is_cut_off(text):
    client = Client(body_stall_timeout_s=30)
    client.send(text[:130])
    client.loop.advance(29)

    assert client.received == b""

    client.loop.advance(3)

    assert client.statuses() == [408]
    assert b"no progress of the request for 30 seconds" in client.bodies()[0]


@pytest.mark.parametrize("size", [60_000, 200_000])
def test_body_that_trickles_is_cut_off(size):
    client = Client(body_stall_timeout_s=30)
    text = post(bytes(size))
    client.send(text[:100])
    for at in range(100, 200):
        client.send(text[at : at + 1])
        client.loop.advance(1)

    assert client.statuses() == [408]


def test_small_body_that_trickles_behind_a_known_head_is_cut_off():
    client = Client(body_stall_timeout_s=30)
    text = post(bytes(200))
    client.send(text)
    client.send(text[:-100])
    for at in range(len(text) - 100, len(text)):
        client.send(text[at : at + 1])
        client.loop.advance(1)

    assert client.statuses() == [200, 408]


@pytest.mark.parametrize("size", [4_000, 60_000, 200_000])
def test_body_that_keeps_its_pace_is_taken(size):
    client = Client(body_stall_timeout_s=5)
    text = post(bytes(size))
    for at in range(0, len(text), 2 * MIN_BYTES_PER_S):
        client.send(text[at : at + 2 * MIN_BYTES_PER_S])
        client.loop.advance(1)

    assert client.statuses() == [200]


def test_stalled_request_behind_one_that_is_due_is_refused_after_its_answer():
    client = Client(header_timeout_s=5)
    client.send(get(b"/later") + b"GET")
    client.loop.advance(10)

    assert client.received == b""

    client.handler.later[0].answer()
    client.loop.run()

    assert client.statuses() == [200, 408]


def test_client_that_takes_nothing_is_cut_off():
    client = Client(write_stall_timeout_s=60)
    client.transport.peer_reads = False
    client.send(get(b"/big"))
    client.loop.advance(59)

    assert not client.transport.is_lost

    client.loop.advance(3)

    assert client.transport.is_aborted
    assert not client.handler.connections


def test_client_that_takes_a_byte_now_and_then_is_cut_off():
    client = Client(write_stall_timeout_s=60)
    client.transport.peer_reads = False
    client.send(get(b"/big"))
    for _ in range(100):
        client.transport.take(1)
        client.loop.advance(1)

    assert client.transport.is_aborted


def test_client_that_takes_its_answer_slowly_gets_it():
    client = Client(write_stall_timeout_s=60)
    client.transport.peer_reads = False
    client.send(get(b"/big"))
    while client.transport.unsent:
        client.transport.take(8192)
        client.loop.advance(10)

    assert len(client.bodies()[0]) == 1 << 20
    assert not client.transport.is_lost


def test_last_answer_that_is_not_taken_does_not_keep_the_connection():
    client = Client(write_stall_timeout_s=60)
    client.transport.peer_reads = False
    client.send(get(b"/", b"Connection: close"))
    client.loop.advance(62)

    assert client.transport.is_aborted
    assert not client.handler.connections


def test_stream_that_is_not_taken_is_abandoned():
    client = Client(write_stall_timeout_s=60)
    client.transport.peer_reads = False
    client.send(get(b"/later"))
    client.connection.begin_stream(200, b"text/plain")
    client.connection.stream(bytes(2 * HIGH_WATER_BYTES))
    client.loop.advance(62)

    assert client.transport.is_aborted
    assert client.handler.later[0].events == ["pause", "abandon"]


def test_refused_client_may_send_on_for_a_while_but_not_for_ever():
    client = Client(http_max_input_bytes=1000)
    client.send(post(bytes(1 << 20)))

    assert client.statuses() == [400]
    assert client.transport.sent_eof
    assert client.unread_bytes == 0
    assert not client.transport.is_lost

    client.loop.advance(LINGER_S + 2)

    assert client.transport.is_lost
    assert not client.handler.connections


def test_refused_client_that_ends_is_gone():
    client = Client()
    client.send(b"garbage\r\n\r\n")
    client.send_eof()

    assert client.transport.is_lost


def test_one_timer_watches_all_slow_clients_and_ends_with_them():
    loop = FakeLoop()
    handler = ScriptedHandler(ClientLimits(http_idle_timeout_s=0), loop)
    clients = [Client(handler) for _ in range(50)]
    for client in clients:
        client.send(get(b"/")[:-3], byte_by_byte())

    assert loop.timer_count == 1

    for client in clients:
        client.send(get(b"/")[-3:])
    loop.advance(2)

    assert loop.timer_count == 0
    assert len(handler.watch) == 0


# Connections that ask for nothing


@pytest.mark.parametrize("text", [b"", b"\r\n", b"\r\n\r\n\n"])
def test_client_that_begins_no_request_is_ended_without_a_word(text):
    client = Client(header_timeout_s=60)
    client.send(text)
    client.loop.advance(59)
    client.send(text)

    assert not client.saw_end

    client.loop.advance(3)

    assert client.saw_end
    assert client.received == b""

    client.loop.advance(LINGER_S + 2)

    assert client.transport.is_lost


@pytest.mark.parametrize("target, statuses", [(b"/a", [200]), (b"/later", [])])
def test_client_that_began_late_or_whose_first_answer_takes_long_is_served(target, statuses):
    client = Client(header_timeout_s=60)
    client.loop.advance(50)
    client.send(get(target))
    client.loop.advance(200)

    assert client.statuses() == statuses
    assert not client.saw_end


def test_idle_connection_is_ended_after_the_timeout():
    client = Client(http_idle_timeout_s=100)
    client.send(get(b"/a"))
    client.loop.advance(99)

    assert not client.saw_end

    client.loop.advance(100)

    assert client.saw_end
    assert client.statuses() == [200]

    client.loop.advance(LINGER_S + 2)

    assert client.transport.is_lost
    assert not client.handler.connections


def test_connection_that_is_used_now_and_then_is_kept():
    client = Client(http_idle_timeout_s=100)
    for _ in range(10):
        client.send(get(b"/a"))
        client.loop.advance(80)

    assert client.statuses() == [200] * 10
    assert not client.saw_end


def test_empty_lines_between_requests_do_not_keep_a_connection():
    client = Client(http_idle_timeout_s=100)
    client.send(get(b"/a"))
    for _ in range(20):
        client.send(b"\r\n")
        client.loop.advance(10)

    assert client.saw_end


@pytest.mark.parametrize("text", [get(b"/later"), get(b"/later") + get(b"/a")])
def test_request_that_runs_long_is_not_idleness(text):
    client = Client(http_idle_timeout_s=100)
    client.send(text)
    client.loop.advance(1000)
    client.handler.later[0].answer()
    client.loop.advance(50)

    assert set(client.statuses()) == {200}
    assert not client.saw_end


def test_body_that_comes_slowly_is_not_idleness():
    client = Client(http_idle_timeout_s=20)
    text = post(bytes(100_000))
    for at in range(0, len(text), 10_000):
        client.send(text[at : at + 10_000])
        client.loop.advance(10)

    assert client.statuses() == [200]


def test_timeout_of_zero_keeps_idle_connections_for_ever():
    client = Client(http_idle_timeout_s=0)
    client.send(get(b"/a"))
    client.loop.advance(1_000_000)

    assert not client.saw_end
    assert client.loop.timer_count == 0


def test_one_timer_watches_all_idle_clients_and_ends_with_them():
    loop = FakeLoop()
    handler = ScriptedHandler(ClientLimits(http_idle_timeout_s=100), loop)
    for _ in range(50):
        Client(handler).send(get(b"/a"))
    loop.advance(5)

    assert loop.timer_count == 1

    loop.advance(200)

    assert not handler.connections
    assert loop.timer_count == 0
