# SPDX-License-Identifier: Apache-2.0
"""Connections whose requests have lines in the access log."""

from __future__ import annotations

import types

from pytriton.protocol.grpc import GrpcStatus
from pytriton.serving.engine.observers import Members
from pytriton.serving.server.access_log import connections
from pytriton.serving.server.access_log.connections import (
    AccessLogUse,
    EntrySink,
    HttpEntries,
    ObservedHttp2,
)
from pytriton.serving.server.grpc.api import GrpcApi
from pytriton.serving.server.options.server_options import AccessLogOptions, ClientLimits
from tests.fakes import FakeLoop, model_spec, request
from tests.server.grpc_fakes import GrpcClient
from tests.server.http2_fakes import Http2Client, head
from tests.server.http_fakes import Client, ScriptedHandler, post
from tests.wire.http2.frame_client import rst_stream


class Entries(list):
    def add(self, entry):
        self.append(entry)


class LoggingHandler(ScriptedHandler):
    """Keeps no request, and has entries instead."""

    def __init__(self, **limits):
        super().__init__(ClientLimits(**limits), FakeLoop())
        self.entries = Entries()
        self.answers = HttpEntries(EntrySink(self.entries, with_health=True))


def test_each_request_has_one_entry():
    client = without_address(Client(LoggingHandler()))
    client.send(post(b"first", b"/a") + post(b"second", b"/later"))
    client.handler.later[0].answer(b"done")
    client.send(post(b"third", b"/later"))
    client.reset()

    assert [(each.status, each.bytes_in) for each in client.handler.entries] == [
        (200, 5),
        (200, 6),
        (499, 5),
    ]


def test_connection_that_waits_does_not_keep_its_last_request():
    client = without_address(Client(LoggingHandler()))
    client.send(post(b"a large body", b"/a"))
    (request,) = client.handler.requests

    kept = [name for name, value in vars(client.connection).items() if value is request]

    assert len(client.handler.entries) == 1
    assert kept == []


def without_address(client):
    """Let the transport of a client have no address, instead of none that can be asked for."""
    client.transport.get_extra_info = lambda name: None
    return client


def test_each_stream_has_one_entry():
    client = without_address(Http2Client(LoggingHandler(http_max_input_bytes=100)))
    client.post(b"first", b"/a")
    client.get(b"/later")
    client.get(b"/later")
    client.get(b"/a", (b"origin", b"http://evil"), method=b"POST")
    client.open(head(b"/a", (b"content-length", b"101"), method=b"POST"))
    streamed = client.handler.later[0].connection
    streamed.begin_stream(200, b"text/plain")
    streamed.stream(b"1234")
    streamed.end_stream()
    client.send(rst_stream(5))
    entries = client.handler.entries

    assert [(each.status, each.bytes_in, each.target) for each in entries] == [
        (200, 5, b"/a"),
        (403, 0, b"/a"),
        (400, 0, b"/a"),
        (200, 0, b"/later"),
        (499, 0, b"/later"),
    ]
    assert [each.bytes_out for each in entries[-2:]] == [4, 0]


def test_stream_knows_the_address_of_its_client():
    client = without_address(Http2Client(LoggingHandler()))
    client.transport.get_extra_info = {"peername": ("10.0.0.1", 1234)}.get
    client.get(b"/later")

    stream = client.handler.later[0].connection
    assert stream.get_extra_info("peername") == ("10.0.0.1", 1234)


def test_streams_that_a_connection_loses_have_entries():
    client = without_address(Http2Client(LoggingHandler()))
    for _ in range(3):
        client.post(b"body", b"/later")
    client.reset()

    assert [(each.status, each.bytes_in) for each in client.handler.entries] == [(499, 4)] * 3


class CallClient(GrpcClient):
    """A client of gRPC whose calls have entries."""

    def __init__(self, monkeypatch):
        self.entries = Entries()
        sink = EntrySink(self.entries, with_health=True)

        def make_http2(api, connection):
            return ObservedHttp2(sink, api.http2_limits, connection)

        monkeypatch.setattr(GrpcApi, "make_http2", make_http2)
        monkeypatch.setattr(connections, "address_of", lambda connection: "10.0.0.1:1")
        super().__init__()


def test_each_call_has_one_entry(monkeypatch):
    client = CallClient(monkeypatch)
    client.call("ServerLive", b"")
    client.call("Nothing", b"")
    stream_id = client.open("ModelStreamInfer")
    client.send(stream_id, b"\xff" * 7, end=False)
    client.reset(client.open("ModelStreamInfer"))
    client.open("ModelInfer")
    client.connection.connection_lost(None)

    paths = [(each.target.rpartition(b"/")[2], each.status) for each in client.entries]
    assert paths[0] == (b"ServerLive", GrpcStatus.OK)
    assert paths[1] == (b"Nothing", GrpcStatus.UNIMPLEMENTED)
    assert paths[-1] == (b"ModelInfer", GrpcStatus.CANCELLED)
    assert paths.count((b"ModelStreamInfer", GrpcStatus.CANCELLED)) >= 1
    assert len(paths) == 5
    assert client.entries[0].bytes_in == 5
    assert {each.client for each in client.entries} == {"10.0.0.1:1"}


def test_unread_answers_of_a_connection_with_entries_are_counted(monkeypatch):
    """The output that is counted is that of the connection that sends."""
    connection = CallClient(monkeypatch).connection

    assert connection._outbox is connection.http2.outbox


def test_streamed_request_that_travels_in_a_chunk_is_noted_for_its_call(monkeypatch):
    client = CallClient(monkeypatch)
    stream_id = client.open("ModelStreamInfer")
    (call,) = client.connection.open_calls()
    member = call.add_member(b"", b"", None)
    chunk = types.SimpleNamespace(callers=[member], model=types.SimpleNamespace(spec=model_spec()))
    use = AccessLogUse(AccessLogOptions(file="-"), client.loop)
    use.begun(Members([request(id="a")], None, chunk, lambda: None))

    record = client.connection.http2.records[stream_id]
    assert (record.model, record.version, record.request_id) == ("m", "1", "a")
