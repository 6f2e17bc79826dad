# SPDX-License-Identifier: Apache-2.0
"""The `h2` package as the client: an implementation by others that checks every frame it gets."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import pytest

from pytriton.protocol.http2 import (
    DataReceived,
    Http2Connection,
    RequestReceived,
    encode_header_block,
)
from tests.wire.http2.frame_client import GRPC_HEADERS

HEAD = encode_header_block([(b":status", b"200"), (b"content-type", b"application/grpc")])
TRAILERS = encode_header_block([(b"grpc-status", b"0"), (b"grpc-message", b"fine")])


class Peers:
    """An h2 client and our server, joined by nothing but bytes."""

    def __init__(self) -> None:
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.server = Http2Connection()
        self.client.initiate_connection()
        self.server_events = []
        self.client_events = []
        self.exchange()

    def exchange(self) -> None:
        """Pass bytes until neither side has more; the client consumes all it gets."""
        while True:
            sent = self.client.data_to_send()
            if sent:
                self.server_events += self.server.receive(sent, 0)
            answer = b"".join(self.server.take_output())
            for event in self.client.receive_data(answer) if answer else ():
                self.client_events.append(event)
                if isinstance(event, h2.events.DataReceived):
                    size = event.flow_controlled_length
                    self.client.acknowledge_received_data(size, event.stream_id)
            if not sent and not answer:
                return

    def request(self, body: bytes = b"", *, headers=GRPC_HEADERS, end_stream=True) -> int:
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, headers)
        if body or end_stream:
            self.client.send_data(stream_id, body, end_stream=end_stream)
        self.exchange()
        return stream_id

    def received_by_client(self, kind):
        return [event for event in self.client_events if isinstance(event, kind)]

    def received_by_server(self, kind):
        return [event for event in self.server_events if isinstance(event, kind)]


@pytest.fixture
def peers() -> Peers:
    return Peers()


def test_unary_call_makes_the_round_trip(peers):
    stream_id = peers.request(b"question")
    peers.server.send_response(stream_id, HEAD, (b"\0\0\0\0\x06", b"answer"), TRAILERS)
    peers.exchange()

    (request,) = peers.received_by_server(RequestReceived)
    assert request.head.path == dict(GRPC_HEADERS)[":path"]
    assert (request.body, request.end_stream) == (b"question", True)
    (response,) = peers.received_by_client(h2.events.ResponseReceived)
    (body,) = peers.received_by_client(h2.events.DataReceived)
    (trailers,) = peers.received_by_client(h2.events.TrailersReceived)
    assert (b":status", b"200") in response.headers
    assert body.data == b"\0\0\0\0\x06answer"
    assert trailers.headers == [(b"grpc-status", b"0"), (b"grpc-message", b"fine")]
    assert peers.received_by_client(h2.events.StreamEnded)


def test_large_bodies_pass_in_both_directions(peers):
    sent = bytes(range(256)) * 16_384
    stream_id = peers.request(end_stream=False)
    at = 0
    while at < len(sent):
        size = min(peers.client.local_flow_control_window(stream_id), 1 << 20, len(sent) - at)
        assert size > 0
        while size:
            part = min(size, peers.client.max_outbound_frame_size)
            peers.client.send_data(stream_id, sent[at : at + part])
            at += part
            size -= part
        before = len(peers.received_by_server(DataReceived))
        peers.exchange()
        for event in peers.received_by_server(DataReceived)[before:]:
            peers.server.acknowledge(stream_id, len(event.data))
    peers.client.end_stream(stream_id)
    peers.exchange()

    received = b"".join(event.data for event in peers.received_by_server(DataReceived))
    peers.server.send_response(stream_id, HEAD, (received,), TRAILERS)
    peers.exchange()
    returned = b"".join(event.data for event in peers.received_by_client(h2.events.DataReceived))
    assert received == sent
    assert returned == sent
    assert peers.received_by_client(h2.events.StreamEnded)


def test_client_with_a_small_header_table_understands_us(peers):
    peers.client.update_settings({1: 0})
    peers.exchange()

    for _ in range(3):
        stream_id = peers.request(b"?")
        peers.server.send_response(stream_id, HEAD, (b"!",), TRAILERS)
        peers.exchange()

    assert len(peers.received_by_client(h2.events.StreamEnded)) == 3


def test_shutdown_is_understood(peers):
    stream_id = peers.request(b"x")
    peers.server.begin_shutdown()
    # To h2 the first GOAWAY is the end, so the ping behind it must not reach it.
    (output, _) = peers.server.take_output()
    (event,) = [
        event
        for event in peers.client.receive_data(output)
        if isinstance(event, h2.events.ConnectionTerminated)
    ]

    assert (event.error_code, event.last_stream_id) == (0, (1 << 31) - 1)
    peers.server.finish_shutdown()
    peers.server.send_response(stream_id, HEAD, (b"x",), TRAILERS)
    assert peers.server.should_close
