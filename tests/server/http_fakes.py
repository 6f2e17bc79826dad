# SPDX-License-Identifier: Apache-2.0
"""A client of an HTTP connection without sockets: fake time, transport and handler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pytriton.serving.server.api.origins import OriginPolicy
from pytriton.serving.server.http.connection import HttpConnection
from pytriton.serving.server.http.handler import HttpExchange, HttpHandler
from pytriton.serving.server.http.request import HttpRequest
from pytriton.serving.server.options.server_options import ClientLimits
from tests.fake_network import FakeTransport
from tests.fakes import FakeLoop


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Later(HttpExchange):
    """A request that the test answers when it likes."""

    def __init__(self, connection: HttpConnection, request: HttpRequest) -> None:
        self.connection = connection
        self.request = request
        self.events: list[str] = []

    def answer(self, body: bytes = b"later") -> None:
        self.connection.respond(200, (body,))

    def abandon(self) -> None:
        self.events.append("abandon")

    def pause(self) -> None:
        self.events.append("pause")

    def resume(self) -> None:
        self.events.append("resume")


class ScriptedHandler(HttpHandler):
    """Echoes a request at once; `/later` and `/fail` do what they are called."""

    def __init__(self, limits: ClientLimits, loop: FakeLoop) -> None:
        super().__init__(limits, loop, OriginPolicy("0.0.0.0"))
        self.requests: list[HttpRequest] = []
        self.later: list[Later] = []

    def route_refusal(self, head: object, client: object) -> None:
        """Let every request have a large body."""

    def handle(self, connection: HttpConnection, request: HttpRequest) -> HttpExchange | None:
        self.requests.append(request)
        target = request.head.target
        if target.startswith(b"/fail"):
            raise RuntimeError("a handler with a mistake")
        if target.startswith(b"/later"):
            self.later.append(Later(connection, request))
            return self.later[-1]
        if target.startswith(b"/big"):
            connection.respond(200, (bytes(1 << 20),))
        else:
            connection.respond(200, (b"%b %b %b" % (request.head.method, target, request.body),))
        return None


class Client:
    """The client's end of one connection."""

    def __init__(self, handler: HttpHandler | None = None, **limits) -> None:
        self.loop = FakeLoop() if handler is None else handler.loop
        self.handler = handler or ScriptedHandler(ClientLimits(**limits), self.loop)
        self.connection = self.handler.make_connection()
        self.transport = FakeTransport(self.loop, self.connection)
        self.connection.connection_made(self.transport)

    def send(self, data: bytes, sizes: Iterator[int] | None = None) -> Client:
        """Deliver bytes, in pieces of these sizes; what is not read now waits in the socket."""
        if sizes is None:
            self.transport.unread += data
            return self.deliver()
        at = 0
        while at < len(data):
            size = next(sizes)
            self.transport.unread += data[at : at + size]
            at += size
            self.deliver()
        return self

    def deliver(self) -> Client:
        self.loop.run()
        while self.transport.deliver_some():
            self.loop.run()
        return self

    def send_eof(self) -> None:
        self.transport.receive_eof()
        self.loop.run()

    def reset(self) -> None:
        self.transport.lose(ConnectionResetError())
        self.loop.run()

    @property
    def unread_bytes(self) -> int:
        return len(self.transport.unread)

    @property
    def received(self) -> bytearray:
        return self.transport.taken

    @property
    def saw_end(self) -> bool:
        return self.transport.sent_eof or self.transport.is_lost

    def answers(self) -> list[Answer]:
        """All that came back, as answers; interim ones too."""
        answers = []
        at = 0
        while at < len(self.received):
            answer, at = read_answer(self.received, at)
            answers.append(answer)
        return answers

    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers()]

    def bodies(self) -> list[bytes]:
        return [answer.body for answer in self.answers()]


def read_answer(text: bytearray, at: int) -> tuple[Answer, int]:
    """The answer that begins at `at`, and where it ends."""
    end = text.find(b"\r\n\r\n", at)
    assert end >= 0, f"no whole head: {text[at:]!r}"
    line, *fields = bytes(text[at:end]).split(b"\r\n")
    at = end + 4
    version, status = line.split(b" ")[:2]
    assert version == b"HTTP/1.1"
    headers = dict(field.split(b": ", 1) for field in fields)
    body = b""
    if headers.get(b"Transfer-Encoding") == b"chunked":
        size = -1
        while size:
            end = text.index(b"\r\n", at)
            size, at = int(text[at:end], 16), end + 2
            body += text[at : at + size]
            assert text[at + size : at + size + 2] == b"\r\n"
            at += size + 2
    elif int(status) >= 200:
        size = int(headers.get(b"Content-Length", len(text) - at))
        body = bytes(text[at : at + size])
        assert len(body) == size
        at += size
    return Answer(int(status), headers, body), at


def get(target: bytes = b"/", *lines: bytes) -> bytes:
    return b"\r\n".join((b"GET %b HTTP/1.1" % target, b"Host: h", *lines, b"", b""))


def post(body: bytes, target: bytes = b"/", *lines: bytes) -> bytes:
    length = b"Content-Length: %d" % len(body)
    head = (b"POST %b HTTP/1.1" % target, b"Host: h", length, *lines, b"", b"")
    return b"\r\n".join(head) + body


def chunked(*chunks: bytes, target: bytes = b"/", trailers: bytes = b"") -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" % target
    text = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + text + b"0\r\n" + trailers + b"\r\n"
