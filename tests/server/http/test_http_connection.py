# SPDX-License-Identifier: Apache-2.0
"""A connection's manners: keep-alive, expectations, streams, endings."""

from __future__ import annotations

import logging

import pytest

from pytriton.serving.server.http.http1_connection import TRANSITIONS, ConnectionState
from pytriton.serving.server.options.server_options import ClientLimits
from tests.fake_network import byte_by_byte
from tests.server.http_fakes import Client, FakeLoop, ScriptedHandler, chunked, get, post

# Keep-alive


def test_connection_close_is_met_after_the_answer(client, sizes):
    client.send(get(b"/a", b"Connection: close"), sizes)

    assert client.answers()[0].headers[b"Connection"] == b"close"
    assert client.transport.is_lost


@pytest.mark.parametrize("junk", [b"\r\n", b"garbage", get(b"/b")])
def test_what_follows_a_request_that_closes_is_ignored(sizes, junk):
    client = Client()
    client.send(get(b"/later", b"Connection: close") + junk, sizes)
    client.handler.later[0].answer(b"done")
    client.loop.run()

    assert client.bodies() == [b"done"]
    assert client.transport.is_lost


def test_http_10_closes_unless_it_asks_not_to(client):
    client.send(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    client.send(b"GET /b HTTP/1.0\r\n\r\n")

    first, second = client.answers()
    assert first.headers[b"Connection"] == b"keep-alive"
    assert second.headers[b"Connection"] == b"close"
    assert client.transport.is_lost


# Expect


def test_expectation_is_met_before_the_body_comes(client):
    head, _, body = post(b"hello", b"/", b"Expect: 100-continue").partition(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")

    assert client.statuses() == [100]

    client.send(body)

    assert client.statuses() == [100, 200]
    assert client.bodies()[1] == b"POST / hello"


def test_expectation_waits_for_its_turn_and_time_does_not_run_meanwhile():
    client = Client(body_stall_timeout_s=10)
    head, _, body = post(b"hello", b"/", b"Expect: 100-continue").partition(b"\r\n\r\n")
    client.send(get(b"/later") + head + b"\r\n\r\n")
    client.loop.advance(100)

    assert client.received == b""

    client.handler.later[0].answer()
    client.loop.run()

    assert client.statuses() == [200, 100]

    client.loop.advance(9)
    client.send(body)

    assert client.statuses() == [200, 100, 200]


def test_expectation_of_http_10_is_not_answered(client):
    client.send(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx")

    assert client.statuses() == [200]


# Streams


def test_stream_is_chunked_and_the_connection_goes_on(client):
    client.send(get(b"/later") + get(b"/next"))
    client.connection.begin_stream(202, b"text/plain")
    client.connection.stream(b"one ")
    client.connection.stream(b"")
    client.connection.stream(b"two")
    client.connection.end_stream()
    client.loop.run()

    first, second = client.answers()
    assert (first.status, first.body) == (202, b"one two")
    assert first.headers == {b"Content-Type": b"text/plain", b"Transfer-Encoding": b"chunked"}
    assert second.body == b"GET /next "


@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
def test_stream_of_http_10_ends_with_the_connection(client, connection):
    client.send(b"GET /later HTTP/1.0\r\nConnection: %b\r\n\r\n" % connection)
    client.connection.begin_stream(200, b"text/plain")
    client.connection.stream(b"one ")
    client.connection.stream(b"two")
    client.connection.end_stream()
    client.loop.run()

    answer = client.answers()[0]
    assert answer.headers == {b"Content-Type": b"text/plain", b"Connection": b"close"}
    assert answer.body == b"one two"
    assert client.transport.is_lost


def test_stream_that_fails_midway_is_cut_short(client):
    client.send(get(b"/later"))
    client.connection.begin_stream(200, b"text/plain")
    client.connection.stream(b"one")
    client.connection.respond_error(500, "too late")
    client.loop.run()

    assert client.received.endswith(b"\r\n3\r\none\r\n")
    assert client.transport.is_lost


def test_stream_to_a_client_that_left_is_dropped(client):
    client.send(get(b"/later"))
    client.connection.begin_stream(200, b"text/plain")
    client.reset()
    client.connection.stream(b"one")
    client.connection.end_stream()
    client.connection.begin_stream(200, b"text/plain")

    assert client.handler.later[0].events == ["abandon"]


# Mistakes of handlers


def test_handler_that_raises_is_logged_and_answered(client, caplog):
    with caplog.at_level(logging.ERROR):
        client.send(get(b"/fail%0a") + get(b"/next"))

    first, second = client.answers()
    assert first.status == 500
    assert first.body == b'{"error":"unexpected error in the server, its log says more"}'
    assert second.body == b"GET /next "
    assert "a handler with a mistake" in caplog.text
    assert "/fail%0a" in caplog.text


def test_answer_without_a_request_is_dropped(client):
    client.send(get(b"/a"))
    client.connection.respond(200, (b"twice",))

    assert client.bodies() == [b"GET /a "]


# Endings


def test_idle_connection_closes_at_once_when_the_server_stops(client):
    client.send(get(b"/a"))
    ended = client.connection.end()
    client.loop.run()

    assert client.transport.is_lost
    assert ended.is_done


def test_client_that_is_asked_to_leave_gets_its_next_answer_first(client):
    client.send(get(b"/a"))
    client.handler.let_clients_leave()
    client.loop.run()

    assert not client.saw_end

    client.send(get(b"/b"))
    client.loop.run()

    first, last = client.answers()
    assert b"Connection" not in first.headers
    assert (last.body, last.headers[b"Connection"]) == (b"GET /b ", b"close")
    assert client.saw_end


def test_client_that_comes_while_others_are_asked_to_leave_gets_one_answer(client):
    client.handler.let_clients_leave()
    newcomer = type(client)(client.handler)
    newcomer.send(get(b"/a"))

    (answer,) = newcomer.answers()
    assert answer.headers[b"Connection"] == b"close"
    assert newcomer.saw_end


def test_answer_that_is_due_is_given_before_the_server_stops(client):
    client.send(get(b"/later") + get(b"/a"))
    ended = client.connection.end()
    client.loop.run()

    assert not client.saw_end

    client.send(get(b"/too late"))
    client.handler.later[0].answer()
    client.loop.run()

    first, last = client.answers()
    assert (first.body, last.body) == (b"later", b"GET /a ")
    assert b"Connection" not in first.headers
    assert last.headers[b"Connection"] == b"close"
    assert client.transport.is_lost
    assert ended.is_done


def test_requests_that_wait_between_two_answers_are_answered_before_the_server_stops(client):
    client.send(get(b"/later") + get(b"/a") + get(b"/b"))
    client.handler.later[0].answer()
    ended = client.connection.end()
    client.loop.run()

    assert client.bodies() == [b"later", b"GET /a ", b"GET /b "]
    assert [b"Connection" in answer.headers for answer in client.answers()] == [False, False, True]
    assert ended.is_done


def test_body_that_was_not_asked_for_yet_does_not_keep_a_server_from_stopping(client):
    client.send(get(b"/later") + post(b"hello", b"/b", b"Expect: 100-continue")[:-5])
    ended = client.connection.end()
    client.handler.later[0].answer()
    client.loop.run()

    (answer,) = client.answers()
    assert answer.headers[b"Connection"] == b"close"
    assert ended.is_done


def test_refusal_that_waits_is_given_before_the_server_stops(client):
    client.send(get(b"/later") + b"garbage\r\n\r\n")
    client.connection.end()
    client.handler.later[0].answer()
    client.loop.run()

    assert client.statuses() == [200, 400]
    assert client.saw_end


def test_stream_that_runs_is_finished_before_the_server_stops(client):
    client.send(get(b"/later"))
    client.connection.begin_stream(200, b"text/plain")
    client.connection.end()
    client.connection.stream(b"rest")
    client.connection.end_stream()
    client.loop.run()

    assert client.bodies() == [b"rest"]
    assert client.transport.is_lost


def test_half_sent_request_does_not_keep_a_server_from_stopping(client):
    client.send(post(bytes(200_000))[:1000])
    ended = client.connection.end()
    client.loop.run()

    assert ended.is_done


@pytest.mark.parametrize(
    "text", [post(b"hello"), chunked(b"he", b"llo"), post(bytes(70_000))[:150]]
)
@pytest.mark.parametrize("leave", ["send_eof", "reset"])
def test_client_may_leave_at_every_byte(text, leave):
    loop = FakeLoop()
    handler = ScriptedHandler(ClientLimits(), loop)
    for at in range(len(text)):
        client = Client(handler)
        client.send(text[:at])
        getattr(client, leave)()

        assert client.received == b""
        assert client.transport.is_lost
    assert not handler.connections
    assert len(handler.watch) == 0


@pytest.mark.parametrize("leave", ["send_eof", "reset"])
def test_client_that_leaves_abandons_what_is_under_way_and_nothing_else(client, leave):
    client.send(get(b"/later") + get(b"/later") + get(b"/a"))
    getattr(client, leave)()
    client.handler.later[0].answer()
    client.loop.run()

    assert len(client.handler.later) == 1
    assert client.handler.later[0].events == ["abandon"]
    assert client.received == b""


def test_client_that_shuts_down_its_side_after_quick_requests_gets_their_answers(client):
    client.send(get(b"/a") * 20, byte_by_byte())
    client.send_eof()

    assert client.statuses() == [200] * 20
    assert client.transport.is_lost


def test_connection_only_moves_forward():
    for state, following in TRANSITIONS.items():
        assert state not in following
    assert TRANSITIONS[ConnectionState.CLOSED] == frozenset()
    assert all(ConnectionState.CLOSED in TRANSITIONS[s] for s in list(ConnectionState)[:-1])
