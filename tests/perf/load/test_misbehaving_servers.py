# SPDX-License-Identifier: Apache-2.0
"""Servers that close, reset, send half answers or errors: all is counted, nothing hangs."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from pytriton.protocol.http2 import encode_header_block, frames
from pytriton.tools.perf.load.plan import Concurrency, LoadProtocol
from tests.client.scripted_server import OK, ScriptedServer
from tests.perf.load.rig import (
    HEADERS,
    SETTINGS,
    TRAILERS,
    FakeGrpcServer,
    head,
    message,
    plan_for,
    run,
    whole_answer,
)

CLOSING = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
BROKEN = b'HTTP/1.1 500 Oh\r\nContent-Length: 19\r\n\r\n{"error":"a fault"}'
FAILED = encode_header_block([(b"grpc-status", b"13"), (b"grpc-message", b"a%20fault")])


def run_http(*connections, requests, **changes):
    with ScriptedServer(*connections) as server:
        return run(plan_for(server.url, **changes), Concurrency(1), requests)


def run_grpc(*connections, requests, opening=SETTINGS, concurrency=1, **options):
    with FakeGrpcServer(*connections, opening=opening) as server:
        plan = plan_for(server.url, LoadProtocol.GRPC)
        return run(plan, Concurrency(concurrency), requests, **options)


def test_http_error_answers_are_counted_with_their_text():
    records = run_http([OK, BROKEN, BROKEN, OK], requests=4)

    assert list(records.ok) == [True, False, False, True]
    assert records.errors == {"HTTP 500: a fault": 2}


@pytest.mark.parametrize("connections", [([CLOSING], [OK, OK]), ([OK], [OK, OK])])
def test_http_connection_that_the_server_closes_between_requests_is_opened_again(connections):
    records = run_http(*connections, requests=3)

    assert records.ok.all()
    assert records.errors == {}


def test_http_connection_that_the_server_resets_between_requests_is_opened_again():
    def serve():
        for answers in ([OK], [OK, OK]):
            connection, _ = listener.accept()
            with connection:
                for answer in answers:
                    connection.recv(65536)
                    connection.sendall(answer)
                connection.recv(65536)
                # Closing resets the connection now, as if the request had come after the end.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        records = run(
            plan_for(f"127.0.0.1:{listener.getsockname()[1]}"), Concurrency(1), requests=3
        )
        server.join()

    assert records.ok.all()
    assert records.errors == {}


def test_http_half_answer_fails_and_the_next_request_connects_again():
    records = run_http([OK[:-1]], [OK], requests=2)

    assert list(records.ok) == [False, True]
    assert list(records.responses) == [0, 1]
    assert "before its answer was complete" in next(iter(records.errors))


def test_http_answer_that_is_too_long_fails():
    records = run_http([OK + b"x"], [OK], requests=2)

    assert list(records.ok) == [False, True]
    assert records.errors == {"expected a body of 2 bytes, got 1 more": 1}


def test_http_port_that_speaks_something_else_fails():
    records = run_http([SETTINGS], requests=1)

    assert not records.ok.any()
    assert "expected an HTTP answer" in next(iter(records.errors))


@pytest.mark.parametrize("protocol", list(LoadProtocol))
def test_server_that_is_gone_costs_errors_but_no_hang_and_no_busy_loop(protocol):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        plan = plan_for(f"127.0.0.1:{listener.getsockname()[1]}", protocol)

        records = run(plan, Concurrency(2), 8, before=listener.close)

    assert len(records) == 8
    assert not records.ok.any()
    assert sum(records.errors.values()) == 8
    assert any(text.startswith("cannot connect: ") for text in records.errors)
    # The second and later tries of a lane rest for 10 ms and more before they begin.
    assert records.begin_ns[-1] - records.begin_ns[0] > 10_000_000


def test_grpc_calls_share_a_connection_and_are_answered_in_any_order():
    def later(stream):
        return b"" if stream == 1 else whole_answer(stream) + whole_answer(1)

    records = run_grpc([later, later], requests=2, concurrency=2)

    assert records.ok.all()
    assert len(records) == 2


@pytest.mark.parametrize("size", [1, 5, 11])
def test_grpc_answers_are_read_in_pieces_of_any_size(size):
    records = run_grpc([whole_answer] * 5, requests=5, receive_bytes=size)

    assert records.ok.all()


def test_grpc_error_status_is_counted_with_its_text():
    def fail(stream):
        return head(stream, FAILED, is_end=True)

    def fail_late(stream):
        return head(stream, HEADERS, is_end=False) + head(stream, FAILED, is_end=True)

    records = run_grpc([fail, whole_answer, fail_late], requests=3)

    assert list(records.ok) == [False, True, False]
    assert records.errors == {"INTERNAL: a fault": 2}


@pytest.mark.parametrize(
    "answer, text",
    [
        (
            lambda stream: frames.rst_stream(stream, 8),
            "the server reset the call with code 8",
        ),
        (
            lambda stream: (
                head(stream, HEADERS, is_end=False) + head(stream, TRAILERS, is_end=True)
            ),
            "expected a response, got none",
        ),
        (
            lambda stream: (
                head(stream, HEADERS, is_end=False)
                + frames.frame(frames.DATA, frames.END_STREAM, stream, b"\0\0\0\0\0")
            ),
            "expected trailers with a status, got none",
        ),
        (
            lambda stream: head(stream, encode_header_block([(b":status", b"503")]), is_end=True),
            "HTTP 503",
        ),
        (lambda stream: head(stream, b"\xff\xff\xff", is_end=True), "expected HTTP/2 of gRPC"),
        (None, "the server closed the connection"),
    ],
)
def test_grpc_call_that_ends_badly_fails_and_the_next_works(answer, text):
    records = run_grpc([answer, whole_answer], [whole_answer], requests=2)

    assert list(records.ok) == [False, True]
    assert next(iter(records.errors)).startswith(text)


def test_grpc_goaway_moves_later_calls_to_another_connection():
    def leave(stream):
        return frames.goaway(stream, 0) + whole_answer(stream)

    records = run_grpc([whole_answer, leave], [whole_answer], requests=3)

    assert records.ok.all()


def test_grpc_call_that_a_goaway_excludes_is_sent_again():
    def refuse(stream):
        return frames.goaway(0, 0)

    records = run_grpc([refuse], [whole_answer], requests=1)

    assert records.ok.all()
    assert len(records) == 1


def test_grpc_header_block_in_two_frames_with_padding_and_a_ping_are_understood():
    def odd(stream):
        padded = b"\x02" + HEADERS[:1] + b"\0\0"
        return (
            frames.ping(b"12345678")
            + frames.frame(frames.HEADERS, frames.PADDED, stream, padded)
            + frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream, HEADERS[1:])
            + message(stream)
            + head(stream, TRAILERS, is_end=True)
        )

    records = run_grpc([odd, odd], requests=2)

    assert records.ok.all()


def test_grpc_request_waits_for_the_servers_windows():
    small = frames.frame(frames.SETTINGS, 0, 0, b"\x00\x04\x00\x00\x00\x10")  # 16 bytes
    parts = []

    def credit(stream):
        """More room after each part of the request; the answer after its last."""
        parts.append(stream)
        is_last = len(server.requests[0][-1]) < 16
        return whole_answer(stream) if is_last else frames.window_update(stream, 16)

    with FakeGrpcServer([credit] * 20, opening=small) as server:
        plan = plan_for(server.url, LoadProtocol.GRPC)
        records = run(plan, Concurrency(1), 1, waits_for_opening=True)

    assert records.ok.all()
    assert set(parts) == {1}
    assert len(parts) >= 2
    assert server.ended == [*([False] * (len(parts) - 1)), True]
