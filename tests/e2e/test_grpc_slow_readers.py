# SPDX-License-Identifier: Apache-2.0
"""A client with a real socket that asks and asks, and reads no answer."""

from __future__ import annotations

import itertools
import select
import socket
from collections.abc import Iterator

import hpack
import pytest

from pytriton.protocol.http2 import frames
from tests.e2e.grpc_server import GrpcServer, grpc_server
from tests.e2e.waiting import DEADLINE_S

# More than all buffers on the way and the server's own bounds can hold together.
MAX_SENT_BYTES = 64 << 20
QUIET_S = 2.0
SETTINGS = frames.frame(frames.SETTINGS, 0, 0, b"")


@pytest.fixture(scope="module")
def server():
    with grpc_server() as running:
        yield running


def call_heads() -> Iterator[bytes]:
    """Calls of a method that nobody knows: each is answered at once, with trailers alone.

    They are long, so that no single read brings more than may be open at a time.
    """
    encoder = hpack.Encoder()
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        hpack.NeverIndexedHeaderTuple(":path", f"/{'a' * 1000}/b"),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    flags = frames.END_HEADERS | frames.END_STREAM
    yield frames.frame(frames.HEADERS, flags, 1, encoder.encode(fields))
    block = encoder.encode(fields)  # the same from now on
    for stream_id in itertools.count(3, 2):
        yield frames.frame(frames.HEADERS, flags, stream_id, block)


def count_answers(sock: socket.socket, expected: int) -> int:
    """Read until so many HEADERS came."""
    sock.settimeout(DEADLINE_S)
    pending = bytearray()
    answers = 0
    while answers < expected:
        chunk = sock.recv(1 << 20)
        assert chunk, f"the connection ended after {answers} of {expected} answers"
        pending += chunk
        at = 0
        while len(pending) - at >= frames.HEADER_BYTES:
            size = int.from_bytes(pending[at : at + 3], "big") + frames.HEADER_BYTES
            if len(pending) - at < size:
                break
            answers += pending[at + 3] == frames.HEADERS
            at += size
        del pending[:at]
    return answers


@pytest.mark.e2e
def test_client_that_reads_no_answers_has_to_wait_and_gets_all_of_them_later(server: GrpcServer):
    heads = call_heads()
    calls = sent = 0
    waiting = b""
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(frames.PREFACE + SETTINGS)
        sock.setblocking(False)
        while sent < MAX_SENT_BYTES and select.select([], [sock], [], QUIET_S)[1]:
            if not waiting:
                waiting = next(heads)
                calls += 1
            count = sock.send(waiting)
            waiting = waiting[count:]
            sent += count
        whole_calls = calls - bool(waiting)

        assert sent < MAX_SENT_BYTES
        assert count_answers(sock, whole_calls) >= whole_calls
