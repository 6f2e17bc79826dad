# SPDX-License-Identifier: Apache-2.0
"""Clients whose server is a test: it sees what they write, and sends any bytes that it likes."""

from __future__ import annotations

from typing import Any

from pytriton.base.protos import service_pb2 as pb
from tests.fake_network import FakeTransport
from tests.fakes import FakeLoop
from tests.workload.calls import Call
from tests.workload.grpc_client import GrpcClient
from tests.workload.http2_connection import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SETTINGS,
    frame,
)
from tests.workload.http_client import HttpClient

HEAD = b"\x88\x5f\x10application/grpc"  # :status 200 and the content type, by the static table
TRAILERS = b"\x00\x0bgrpc-status\x01"


class Scripted:
    """A client on a fake connection, and what its owner was told."""

    def __init__(self, client_type: type[HttpClient | GrpcClient] = HttpClient, **settings: Any):
        self.loop = FakeLoop()
        self.ended: list[Call] = []
        self.violations: list[str] = []
        self.lost: list[Exception | None] = []
        self.client = client_type(
            self.loop.time,
            self.loop.call_later,
            self.ended.append,
            on_lost=lambda _client, error: self.lost.append(error),
            on_violation=lambda sentence, _call: self.violations.append(sentence),
            **settings,
        )
        self.transport = FakeTransport(self.loop, self.client)
        self.client.connection_made(self.transport)
        if client_type is GrpcClient:
            self.receive(frame(SETTINGS, 0, 0, b""))
            self.written()

    def submit(self, *calls: Call) -> None:
        for call in calls:
            self.client.submit(call)
        self.loop.run()

    def receive(self, *data: bytes) -> None:
        for each in data:
            if not self.transport.is_lost:
                self.transport.receive(each)
            self.loop.run()

    def written(self) -> bytes:
        """What was written since the last time."""
        data = bytes(self.transport.taken)
        self.transport.taken.clear()
        return data


def http_answer(body: bytes, *fields: bytes, status: bytes = b"200 OK") -> bytes:
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join((b"HTTP/1.1 " + status, length, *fields, b"", b"")) + body


def events(*texts: bytes, status: bytes = b"200 OK") -> bytes:
    """Server-sent events, each in a chunk of its own."""
    head = (
        b"HTTP/1.1 " + status,
        b"Content-Type: text/event-stream; charset=utf-8",
        b"Transfer-Encoding: chunked",
        b"",
        b"",
    )
    chunks = [b"%x\r\n%b\r\n" % (len(text), text) for text in texts]
    return b"\r\n".join(head) + b"".join(chunks) + b"0\r\n\r\n"


def data(stream_id: int, message: bytes, flags: int = 0) -> bytes:
    return frame(DATA, flags, stream_id, b"\0" + len(message).to_bytes(4, "big") + message)


def head(stream_id: int, block: bytes = HEAD) -> bytes:
    return frame(HEADERS, END_HEADERS, stream_id, block)


def trailers(stream_id: int, status: int = 0) -> bytes:
    block = TRAILERS + b"%d" % status if status < 10 else b"\x00\x0bgrpc-status\x02%d" % status
    return frame(HEADERS, END_HEADERS | END_STREAM, stream_id, block)


def infer_response(call: Call, *outputs: Any, **fields: Any) -> pb.ModelInferResponse:
    response = pb.ModelInferResponse(model_name=call.model, model_version="1", id=call.id, **fields)
    for each in outputs:
        response.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        response.raw_output_contents.append(each.raw)
    return response
