# SPDX-License-Identifier: Apache-2.0
"""The raw client of large gRPC calls against an independent HTTP/2 server that echoes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import pytest

from benchmarks.large_grpc_client import LargeCallClient
from tests.e2e.waiting import DEADLINE_S

MEBIBYTE = 2**20
CONNECTION_CREDIT = 2 * MEBIBYTE
MAX_FRAME = h2.settings.SettingCodes.MAX_FRAME_SIZE
INITIAL_WINDOW = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
OK = [(":status", "200"), ("content-type", "application/grpc")]

Answer = Callable[["EchoServer", int], None]


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


class EchoServer:
    """Answers each call with what it was sent; h2 raises if a frame or a window is overstepped."""

    def __init__(self, peer: socket.socket, answer: Answer, settings: dict[int, int]) -> None:
        self.http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.body = b""
        self.frame_sizes: list[int] = []
        self.pings_answered = 0
        # h2 looks at a new limit of frames only when it is given data the next time.
        self.is_settled = threading.Event()
        self._unsettled = 2  # its first settings, and those of the test
        self.failure: h2.exceptions.ProtocolError | None = None
        self._peer = peer
        self._answer = answer
        self._settings = settings

    def serve(self) -> None:
        try:
            self.http2.initiate_connection()
            self.http2.update_settings(self._settings)
            self.http2.increment_flow_control_window(CONNECTION_CREDIT)
            self.flush()
            while data := self._peer.recv(MEBIBYTE):
                for event in self.http2.receive_data(data):
                    self._take(event)
                self.flush()
        except h2.exceptions.ProtocolError as error:
            self.failure = error
        except ConnectionError:
            pass  # the client went while something was on its way to it
        finally:
            self._peer.close()

    def flush(self) -> None:
        self._peer.sendall(self.http2.data_to_send())

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            self.frame_sizes.append(len(event.data))
            self.body += event.data
            self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self._answer(self, event.stream_id)
            self.body = b""
        elif isinstance(event, h2.events.SettingsAcknowledged):
            self._unsettled -= 1
            if not self._unsettled:
                self.is_settled.set()
        elif isinstance(event, h2.events.PingAckReceived):
            self.pings_answered += 1


def echo(server: EchoServer, stream: int) -> None:
    """Whole frames of the size that the client allows, as a server without mercy would."""
    server.http2.send_headers(stream, OK)
    body, size = server.body, server.http2.max_outbound_frame_size
    for at in range(0, len(body), size):
        server.http2.send_data(stream, body[at : at + size])
    server.http2.send_headers(stream, [("grpc-status", "0")], end_stream=True)


def echo_after_a_ping(server: EchoServer, stream: int) -> None:
    server.http2.ping(b"12345678")
    echo(server, stream)


def refuse(server: EchoServer, stream: int) -> None:
    server.http2.send_headers(stream, OK)
    trailers = [("grpc-status", "5"), ("grpc-message", "no such model")]
    server.http2.send_headers(stream, trailers, end_stream=True)


def reset(server: EchoServer, stream: int) -> None:
    server.http2.reset_stream(stream, error_code=2)


def hang_up(server: EchoServer, _stream: int) -> None:
    server._peer.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def connected(
    answer: Answer = echo, settings: dict[int, int] | None = None, answer_bytes: int = 4 * MEBIBYTE
) -> Iterator[tuple[LargeCallClient, EchoServer]]:
    near, far = socket.socketpair()
    server = EchoServer(far, answer, settings or {})
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        with near:
            client = LargeCallClient(near, answer_bytes)
            client.open()
            assert server.is_settled.wait(timeout=DEADLINE_S)
            yield client, server
    finally:
        thread.join()


def message(size: int) -> bytes:
    return bytes(range(251)) * (size // 251 + 1)


def test_answer_is_what_the_server_sent():
    sent = message(3 * MEBIBYTE)

    with connected() as (client, server):
        elapsed_s, got = client.call(framed(sent))

    assert server.failure is None
    assert got == sent
    assert elapsed_s > 0


def test_connection_serves_one_call_after_the_other():
    sent = [message(size) for size in (2 * MEBIBYTE, 10, MEBIBYTE)]

    with connected() as (client, server):
        got = [client.call(framed(content))[1] for content in sent]

    assert server.failure is None
    assert got == sent


@pytest.mark.parametrize(
    "allowed, largest",
    [
        pytest.param(2**14, 2**14, id="least"),
        pytest.param(100_000, 100_000, id="between"),
        pytest.param(2**22, MEBIBYTE, id="more-than-wanted"),
    ],
)
def test_frames_are_as_large_as_the_server_takes_up_to_a_mebibyte(allowed, largest):
    settings = {MAX_FRAME: allowed, INITIAL_WINDOW: 8 * MEBIBYTE}

    with connected(settings=settings) as (client, server):
        client.call(framed(message(3 * MEBIBYTE)))

    assert server.failure is None
    assert max(server.frame_sizes) == largest


def test_small_windows_are_kept():
    with connected(settings={INITIAL_WINDOW: 1000}) as (client, server):
        _, got = client.call(framed(message(50_000)))

    assert server.failure is None
    assert got == message(50_000)
    assert max(server.frame_sizes) == 1000


def test_ping_is_answered():
    with connected(echo_after_a_ping) as (client, server):
        client.call(framed(b"first"))
        client.call(framed(b"second"))

    assert server.failure is None
    assert server.pings_answered >= 1


def test_call_that_fails_says_how():
    with (
        connected(refuse) as (client, _),
        pytest.raises(RuntimeError, match=r"grpc-status 0, got .*'5'.*no such model"),
    ):
        client.call(framed(b"x"))


def test_reset_call_is_an_error():
    with (
        connected(reset) as (client, _),
        pytest.raises(ConnectionError, match="frame of type 3"),
    ):
        client.call(framed(b"x"))


def test_connection_that_ends_early_is_an_error():
    with (
        connected(hang_up) as (client, _),
        pytest.raises(ConnectionError, match="closed after"),
    ):
        client.call(framed(b"x"))


def test_answer_beyond_the_expected_size_is_an_error():
    with (
        connected(answer_bytes=0) as (client, _),
        pytest.raises(RuntimeError, match="answer of less than 1048576 bytes, got more"),
    ):
        client.call(framed(message(2 * MEBIBYTE)))
