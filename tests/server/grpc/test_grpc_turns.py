# SPDX-License-Identifier: Apache-2.0
"""Turns of gRPC clients: calls that come at once are begun in turns, in order."""

from __future__ import annotations

import pytest

from pytriton.base.protos import service_pb2
from pytriton.protocol.http2 import Http2ErrorCode, frames
from pytriton.serving.server.api.turns import REQUEST_UNITS, TURN_UNITS
from tests.server.grpc_fakes import SERVICE, GrpcClient, framed, infer_request
from tests.wire.http2.frame_client import data

MANY = 400
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def calls(
    client: GrpcClient, count: int, method: str = "ServerMetadata"
) -> tuple[list[int], bytes]:
    """The streams and the bytes of calls without content."""
    streams, wire = [], []
    for _ in range(count):
        streams.append(client._next_stream)
        wire += [
            client.head(f"{SERVICE}/{method}"),
            data(streams[-1], framed(b""), end_stream=True),
        ]
    return streams, b"".join(wire)


def begun(client: GrpcClient) -> int:
    """How many calls were answered; nothing was written yet."""
    return MANY - client.connection.http2.open_streams


def test_calls_of_one_read_are_answered_in_turns():
    client = GrpcClient()
    streams, wire = calls(client, MANY)

    client.transport.receive(wire)
    assert 0 < begun(client) <= TURN_UNITS // REQUEST_UNITS
    assert not client.transport.is_reading
    client.run()

    assert client.transport.is_reading
    assert {client.response(stream).status for stream in streams} == {"0"}
    heads = [sent.stream_id for sent in client.sent if sent.kind == frames.HEADERS]
    assert sorted(set(heads)) == list(dict.fromkeys(heads)) == streams


def test_calls_of_a_client_that_has_left_are_not_begun():
    client = GrpcClient()
    _, wire = calls(client, MANY)
    client.transport.receive(wire)

    client.transport.lose(ConnectionResetError())
    client.loop.run()

    assert not client.connection.open_calls()
    assert not client.connection._left


def test_calls_that_are_left_at_the_shutdown_may_be_repeated_elsewhere():
    client = GrpcClient()
    streams, wire = calls(client, MANY)
    client.transport.receive(wire)
    first = begun(client)

    client.connection.end()
    client.run()

    resets = [sent for sent in client.sent if sent.kind == frames.RST_STREAM]
    assert [sent.stream_id for sent in resets] == streams[first:]
    code = int(Http2ErrorCode.REFUSED_STREAM).to_bytes(4, "big")
    assert {sent.payload for sent in resets} == {code}
    assert client.transport.is_lost


def test_read_of_many_calls_and_a_large_message_is_whole():
    client = GrpcClient()
    streams, wire = calls(client, MANY)
    last = client._next_stream
    request = service_pb2.ModelInferRequest.FromString(infer_request("coupled"))
    request.parameters["text"].string_param = "x" * 100_000
    message = framed(request.SerializeToString())
    parts = [data(last, message[at : at + 16_384]) for at in range(0, len(message), 16_384)]
    wire += (
        client.head(f"{SERVICE}/ModelInfer") + b"".join(parts) + data(last, b"", end_stream=True)
    )
    client.receive(wire)

    assert {client.response(stream).status for stream in streams} == {"0"}
    assert len(client.engine.inferences) == 1


@pytest.mark.parametrize("count", [30, 300])
def test_documents_of_one_call_are_sent_in_turns(count):
    client = GrpcClient()
    stream = client.open(REFLECTION)
    message = framed(b"\x22\x1einference.GRPCInferenceService")
    client.transport.receive(data(stream, message * count, end_stream=True))
    assert client.connection.turn.is_over
    client.run()

    response = client.response(stream)
    assert response.status == "0"
    assert len(response.messages) == count
