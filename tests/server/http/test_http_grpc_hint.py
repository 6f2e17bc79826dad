# SPDX-License-Identifier: Apache-2.0
"""Clients of gRPC that have the port of HTTP are told where to go."""

from __future__ import annotations

import pytest

from pytriton.serving.server.options.endpoints import EndpointOptions
from tests.server.http2_fakes import Http2Client, head
from tests.server.http_models import Service

CALL = b"/inference.GRPCInferenceService/ModelInfer"
TYPE = (b"content-type", b"application/grpc+proto")


def reply_of(client, stream):
    client.read()
    return client.reply(stream)


@pytest.mark.parametrize("ends", [True, False])
def test_call_over_http_is_told_the_port_of_grpc(ends):
    client = Http2Client(Service(grpc=EndpointOptions(port=8123)).api)
    fields = head(CALL, TYPE, method=b"POST")
    if ends:
        stream, wire = client.request(fields, b"\0\0\0\0\0")
        client.send(wire)
    else:
        stream = client.open(fields)
    reply = reply_of(client, stream)

    assert reply.status == 200
    assert reply.headers[b"content-type"] == b"application/grpc"
    assert reply.headers[b"grpc-status"] == b"12"
    assert reply.headers[b"grpc-message"] == (
        b"this port serves HTTP, not gRPC, which is at port 8123"
    )
    assert reply.body == b""


@pytest.mark.parametrize(
    "grpc", [EndpointOptions(port=8123, allow=False), EndpointOptions(port=0)], ids=["off", "free"]
)
def test_call_over_http_is_told_no_port_that_is_not_known(grpc):
    client = Http2Client(Service(grpc=grpc).api)
    stream, wire = client.request(head(CALL, TYPE, method=b"POST"), b"\0\0\0\0\0")
    client.send(wire)

    assert reply_of(client, stream).headers[b"grpc-message"] == b"this port serves HTTP, not gRPC"


def test_next_request_on_the_connection_is_answered():
    client = Http2Client(Service().api)
    for _ in range(2):
        stream, wire = client.request(head(CALL, TYPE, method=b"POST"), b"\0\0\0\0\0")
        client.send(wire)
        assert reply_of(client, stream).headers[b"grpc-status"] == b"12"

    assert reply_of(client, client.get(b"/v2/health/live")).status == 200
