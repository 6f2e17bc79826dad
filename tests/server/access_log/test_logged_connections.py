# SPDX-License-Identifier: Apache-2.0
"""Connections whose requests have lines in the access log."""

from __future__ import annotations

from pytriton.serving.server.access_log.connections import LoggedHttp2Stream, LoggedHttpConnection
from pytriton.serving.server.http.http1_connection import Http1Connection
from pytriton.serving.server.options.server_options import ClientLimits
from tests.fakes import FakeLoop
from tests.server.http2_fakes import Http2Client, head
from tests.server.http_fakes import Client, ScriptedHandler, post
from tests.wire.http2.frame_client import rst_stream


class Entries(list):
    def add(self, entry):
        self.append(entry)


class LoggingHandler(ScriptedHandler):
    """Keeps no request, and has entries instead."""

    def __init__(self):
        super().__init__(ClientLimits(), FakeLoop())
        self.entries = Entries()

    def make_connection(self):
        # A fake transport has no address that could be logged.
        members = {"connection_made": Http1Connection.connection_made}
        kind = type("Connection", (LoggedHttpConnection,), members)
        kind.access_log, kind.with_health = self.entries, True
        return kind(self)


def test_each_request_has_one_entry():
    client = Client(LoggingHandler())
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
    client = Client(LoggingHandler())
    client.send(post(b"a large body", b"/a"))
    (request,) = client.handler.requests

    kept = [name for name, value in vars(client.connection).items() if value is request]

    assert len(client.handler.entries) == 1
    assert kept == []


class LoggingHttp2Handler(ScriptedHandler):
    """A handler whose streams of HTTP/2 have entries."""

    def __init__(self, **limits):
        super().__init__(ClientLimits(**limits), FakeLoop())
        self.entries = Entries()
        members = {"access_log": self.entries, "with_health": True}
        self.stream_class = type("Stream", (LoggedHttp2Stream,), members)


class AddressedClient(Http2Client):
    """A client whose transport has no address, instead of none that can be asked for."""

    def __init__(self, handler):
        super().__init__(handler)
        self.transport.get_extra_info = lambda name: None


def test_each_stream_has_one_entry():
    client = AddressedClient(LoggingHttp2Handler(http_max_input_bytes=100))
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
    client = AddressedClient(LoggingHttp2Handler())
    client.transport.get_extra_info = {"peername": ("10.0.0.1", 1234)}.get
    client.get(b"/later")

    stream = client.handler.later[0].connection
    assert stream.get_extra_info("peername") == ("10.0.0.1", 1234)


def test_streams_that_a_connection_loses_have_entries():
    client = AddressedClient(LoggingHttp2Handler())
    for _ in range(3):
        client.post(b"body", b"/later")
    client.reset()

    assert [(each.status, each.bytes_in) for each in client.handler.entries] == [(499, 4)] * 3
