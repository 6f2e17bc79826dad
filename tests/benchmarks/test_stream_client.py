# SPDX-License-Identifier: Apache-2.0
"""The raw HTTP/2 client of one stream against a server whose bytes are written by hand."""

from __future__ import annotations

import itertools
import socket
import struct

import h2.config
import h2.connection
import h2.events
import hpack
import pytest

from benchmarks.http2 import frame, messages
from benchmarks.stream_client import StreamCall

SETTINGS = frame(4, 0, 0, b"")
PREFACE_BYTES = 24
DATA_KIND, PING_KIND = 0, 6


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def data(content: bytes) -> bytes:
    return frame(0, 0, 1, content)


def headers(*fields: tuple[str, str]) -> bytes:
    return frame(1, 4, 1, hpack.Encoder().encode(fields))


def trailers(status: str = "0", text: str = "") -> bytes:
    fields = [("grpc-status", status), ("grpc-message", text)]
    return frame(1, 5, 1, hpack.Encoder().encode(fields))


OK = headers((":status", "200"))


@pytest.fixture
def ends():
    client, server = socket.socketpair()
    with client, server:
        client.settimeout(10)
        server.settimeout(10)
        yield client, server


def called(ends, *answer: bytes) -> list[bytes]:
    """The responses that a call finds in what the server sends."""
    client, server = ends
    server.sendall(SETTINGS)
    call = StreamCall(client)
    call.open()
    server.sendall(b"".join(answer))
    return call.run([framed(b"request")])[1]


def sent_frames(server: socket.socket) -> list[tuple[int, bytes]]:
    """Type and content of the frames that the client sent after its preface."""
    server.setblocking(False)
    sent = server.recv(2**20)[PREFACE_BYTES:]
    frames = []
    while sent:
        length, kind = int.from_bytes(sent[:3], "big"), sent[3]
        frames.append((kind, sent[9 : 9 + length]))
        sent = sent[9 + length :]
    return frames


def test_call_returns_the_responses_in_their_order(ends):
    first, second = framed(b"first"), framed(b"second")

    assert called(ends, OK, data(first), data(second), trailers()) == [b"first", b"second"]


def test_responses_may_share_a_frame_or_be_spread_over_several(ends):
    content = framed(b"first") + framed(b"second") + framed(b"third")

    answer = [OK, data(content[:14]), data(content[14:30]), data(content[30:]), trailers()]

    assert called(ends, *answer) == [b"first", b"second", b"third"]


def test_call_is_understood_by_an_independent_http2_server(ends):
    client, server = ends
    server.sendall(SETTINGS)
    call = StreamCall(client)
    call.open()
    server.sendall(OK + trailers())
    request = framed(bytes(20_000))
    call.run([request, request])
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    peer.initiate_connection()

    events = peer.receive_data(server.recv(2**20))

    (opened,) = (event for event in events if isinstance(event, h2.events.RequestReceived))
    parts = [event.data for event in events if isinstance(event, h2.events.DataReceived)]
    path = dict(opened.headers)[b":path"]
    assert path == b"/inference.GRPCInferenceService/ModelStreamInfer"
    assert b"".join(parts) == request + request
    assert any(isinstance(event, h2.events.StreamEnded) for event in events)


def test_times_are_in_order(ends):
    client, server = ends
    server.sendall(SETTINGS + OK + data(framed(b"x")) + trailers())
    call = StreamCall(client)
    call.open()

    result, _ = call.run([framed(b"request")])

    assert result.responses == 1
    assert 0 < result.first_s <= result.last_s


def test_ping_is_answered_with_its_content(ends):
    called(ends, OK, frame(PING_KIND, 0, 0, b"12345678"), trailers())

    assert (PING_KIND, b"12345678") in sent_frames(ends[1])


def test_large_request_is_split_into_frames_every_server_takes(ends):
    client, server = ends
    server.sendall(SETTINGS + OK + trailers())
    call = StreamCall(client)
    call.open()

    call.run([framed(bytes(40_000))])

    sizes = [len(content) for kind, content in sent_frames(server) if kind == DATA_KIND]
    assert sizes == [16_384, 16_384, 40_005 - 2 * 16_384, 0]


def test_requests_beyond_the_initial_window_are_refused(ends):
    client, server = ends
    server.sendall(SETTINGS)
    call = StreamCall(client)
    call.open()

    with pytest.raises(ValueError, match="up to 65535 bytes, got 65541"):
        call.run(list(itertools.repeat(framed(bytes(21_842)), 3)))


def test_call_that_fails_says_how(ends):
    with pytest.raises(RuntimeError, match=r"grpc-status 0, got .*'5'.*no such model"):
        called(ends, OK, trailers("5", "no such model"))


def test_reset_stream_is_an_error(ends):
    with pytest.raises(ConnectionError, match="frame of type 3"):
        called(ends, OK, frame(3, 0, 1, struct.pack(">I", 2)))


def test_connection_that_ends_early_is_an_error(ends):
    client, server = ends
    server.sendall(SETTINGS + OK + data(framed(b"x")))
    call = StreamCall(client)
    call.open()
    server.shutdown(socket.SHUT_WR)

    with pytest.raises(ConnectionError, match="closed after 6 bytes"):
        call.run([framed(b"request")])


@pytest.mark.parametrize("content", [framed(b"cut off")[:-1], b"\x01" + framed(b"zipped")[1:]])
def test_message_that_is_cut_off_or_compressed_is_an_error(content):
    with pytest.raises(RuntimeError, match="whole messages that are not compressed"):
        list(messages(bytearray(content)))
