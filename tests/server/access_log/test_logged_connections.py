# SPDX-License-Identifier: Apache-2.0
"""Connections whose requests have lines in the access log."""

from __future__ import annotations

from pytriton.serving.server.access_log.connections import LoggedHttpConnection
from pytriton.serving.server.http.connection import Http1Connection
from pytriton.serving.server.options.server_options import ClientLimits
from tests.fakes import FakeLoop
from tests.server.http_fakes import Client, ScriptedHandler, post


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
