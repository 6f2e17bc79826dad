# SPDX-License-Identifier: Apache-2.0
"""One HTTP/1.1 connection, which carries one request at a time, and reads its answers.

The generator reads answers itself, because that is most of its work: an answer whose head and
length came before is recognised in 0.2 us, and costs 3 us to parse.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

import orjson

from pytriton.tools.perf.load.lane import LaneListener, RequestLane, clock
from pytriton.tools.perf.load.link import (
    WOULD_BLOCK,
    WRITABLE,
    Dialer,
    Receive,
    SocketPoller,
    receiver,
)
from pytriton.tools.perf.load.requests import HttpRequests

_UNTIL_CLOSE, _CHUNKED = -1, -2
_MAX_HEAD_BYTES = 1 << 16
_MAX_HEADS = 1000

RECEIVE_BYTES = 1 << 16


class HttpAnswerError(Exception):
    """What came is not an answer of HTTP/1.1, or not whole."""


class Head(NamedTuple):
    """What counts of an answer's head.

    Attributes:
        status: The status code.
        length: The bytes of the body; below zero: in chunks, or until the connection closes.
        keeps_alive: Whether the connection can be used again.
        json_bytes: How much of the body is JSON before binary tensors; -1: all of it.
    """

    status: int
    length: int
    keeps_alive: bool
    json_bytes: int


def parse_head(head: bytes) -> Head:
    """Parse a head with its empty line.

    Raises:
        HttpAnswerError: it is not the head of an HTTP/1.1 answer.
    """
    lines = head.split(b"\r\n")
    parts = lines[0].split(b" ", 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
        raise HttpAnswerError(f"expected an HTTP answer, got {lines[0][:80]!r}")
    fields = {}
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        fields[name.strip().lower()] = value.strip().lower()
    status = int(parts[1])
    length = fields.get(b"content-length", b"")
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        size = _CHUNKED
    elif length.isdigit():
        size = int(length)
    elif length:
        raise HttpAnswerError(f"expected a number as Content-Length, got {length[:40]!r}")
    else:
        size = 0 if status in (204, 304) or status < 200 else _UNTIL_CLOSE
    connection = fields.get(b"connection", b"")
    keeps_alive = b"close" not in connection and size != _UNTIL_CLOSE
    if parts[0] == b"HTTP/1.0":
        keeps_alive = keeps_alive and b"keep-alive" in connection
    json_length = fields.get(b"inference-header-content-length", b"")
    return Head(status, size, keeps_alive, int(json_length) if json_length.isdigit() else -1)


class HttpAnswers:
    """Reads the answers of one connection, one after the other.

    Attributes:
        heads: The heads that came before, shared by all connections.
        head: The head of the answer that came last; None while it has not come.
        known: Its bytes: an answer that begins with them and is `known_bytes` long is whole and
            well, which the owner may test before it calls `feed`.
        is_idle: No part of an answer has come.
    """

    __slots__ = (
        "_buffer",
        "_in_chunk",
        "head",
        "heads",
        "is_idle",
        "is_whole",
        "known",
        "known_bytes",
    )

    def __init__(self, heads: dict[bytes, Head]) -> None:
        self.heads = heads
        self._buffer = b""

        self._in_chunk = 0
        self.head: Head | None = None
        self.is_idle = True
        self.is_whole = False
        self.known = b"\x00"  # no answer begins like that
        self.known_bytes = -1

    def feed(self, data: bytes) -> list[bytes]:
        """Take received bytes; the answer is complete when `is_whole` is True.

        Returns:
            The pieces of the body that these bytes had.

        Raises:
            HttpAnswerError: the bytes are not an answer.
        """
        self.is_idle = False
        data = self._buffer + data
        self._buffer = b""
        head = self.head
        if head is None:
            head = self._take_head(data)
            if head is None:
                return []
            data, self._buffer = self._buffer, b""
        if head.length == _CHUNKED:
            return self._take_chunks(data)
        if head.length == _UNTIL_CLOSE:
            return [data] if data else []
        return self._take_counted(data, head.length)

    def end(self) -> list[bytes]:
        """The connection was closed; HttpAnswerError if the answer is not whole."""
        if self.head is None or self.head.length != _UNTIL_CLOSE:
            raise HttpAnswerError("the server closed the connection before its answer was complete")
        self.is_whole = True
        return []

    def next(self) -> None:
        """Expect the next answer."""
        self.head = None
        self.is_idle = True
        self.is_whole = False
        self._in_chunk = 0
        self._buffer = b""

    def _take_head(self, data: bytes) -> Head | None:
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(data) > _MAX_HEAD_BYTES:
                raise HttpAnswerError(f"expected the end of an HTTP head, got {data[:80]!r}")
            if not b"HTTP/1.".startswith(data[:7]):
                raise HttpAnswerError(f"expected an HTTP answer, got {data[:80]!r}")
            self._buffer = data
            return None
        text = data[:end]
        head = self.heads.get(text)
        if head is None:
            head = parse_head(text)
            if len(self.heads) < _MAX_HEADS:
                self.heads[text] = head
        if head.status < 200:  # an interim answer; the final one follows
            return self._take_head(data[end:])
        self.head = head
        self._buffer = data[end:]
        self._in_chunk = head.length
        if head.status == 200 and head.length >= 0 and head.keeps_alive:
            self.known, self.known_bytes = text, end + head.length
        return head

    def _take_counted(self, data: bytes, length: int) -> list[bytes]:
        self._in_chunk -= len(data)
        if self._in_chunk < 0:
            raise HttpAnswerError(f"expected a body of {length} bytes, got {-self._in_chunk} more")
        self.is_whole = not self._in_chunk
        return [data] if data else []

    def _take_chunks(self, data: bytes) -> list[bytes]:
        """`_in_chunk` is what is missing of a chunk with its line end; _CHUNKED: between chunks."""
        pieces: list[bytes] = []
        at = 0
        while True:
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            size = _chunk_size(data[at:end])
            stop = end + 2 + size
            if len(data) < stop + 2:
                break
            if not size:
                self.is_whole = True
                if len(data) > stop + 2:
                    raise HttpAnswerError(
                        f"expected no data after an answer, got {data[stop + 2 :]!r}"
                    )
                return pieces
            pieces.append(data[end + 2 : stop])
            at = stop + 2
        self._buffer = data[at:]
        return pieces


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.split(b";")[0], 16)
    except ValueError as error:
        raise HttpAnswerError(f"expected the size of a chunk, got {line[:40]!r}") from error


def error_text(status: int, body: bytes) -> str:
    """The text of an error answer: the server's own, with its status."""
    try:
        document = orjson.loads(body)
        text = document["error"] if isinstance(document, dict) else document
    except (orjson.JSONDecodeError, KeyError):
        text = body[:200].decode("utf-8", "replace")
    return f"HTTP {status}: {text}" if text else f"HTTP {status}"


def event_error(event: bytes) -> str:
    """The error that a server-sent event carries; empty if it is an ordinary response."""
    if b'"error"' not in event:
        return ""
    try:
        document = orjson.loads(event.partition(b":")[2])
    except orjson.JSONDecodeError:
        return ""
    only_error = isinstance(document, dict) and set(document) == {"error"}
    return str(document["error"]) if only_error else ""


class LoadHttpConnection:
    """Sends a request, recognises its answer, and connects again when the server has closed."""

    def __init__(
        self,
        link: Dialer,
        requests: HttpRequests,
        outcome: LaneListener,
        poller: SocketPoller,
        heads: dict[bytes, Head],
        *,
        is_streaming: bool,
    ) -> None:
        self._link = link
        self._requests = requests
        self._outcome = outcome
        self._poller = poller
        self._is_streaming = is_streaming
        self._looks = outcome.looks_at_answers
        self._answers = HttpAnswers(heads)
        self._socket: socket.socket | None = None
        self._receive: Receive
        self._rest = memoryview(b"")
        self._lane: RequestLane | None = None
        self._pieces: list[bytes] = []
        self._served = 0
        self._error = ""

    def open(self) -> socket.socket:
        if self._socket is None:
            self._socket = self._link.open()
            self._receive = receiver(self._socket)
            self._poller.add(self._socket.fileno(), self.on_event)
            self._served = 0
        return self._socket

    def begin(self, lane: RequestLane) -> None:
        self._lane = lane
        try:
            connection = self._socket or self.open()
            data = self._requests.whole(lane.choice)
            sent = connection.send(data)
        except WOULD_BLOCK:
            sent = 0
        except OSError as error:
            # A server may close an idle connection at any time: RFC 9112, 9.5. The request is sent
            # again only if this connection served one before, so that a dead server ends the loop.
            if self._socket is not None and self._served:
                self._send_again(lane)
                return
            what = "connect" if self._socket is None else "send"
            self._fail(f"cannot {what}: {error}")
            return
        lane.sent_ns = clock()
        if sent != len(data):
            self._rest = memoryview(data)[sent:]
            self._poller.want_write(connection.fileno(), wants=True)

    def close(self) -> None:
        if self._socket is not None:
            self._poller.remove(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._lane = None
        self._rest = memoryview(b"")
        self._pieces = []
        self._error = ""
        self._answers.next()

    def on_event(self, event: int) -> None:
        """The connection can be read, or written if something is left to write."""
        if event & WRITABLE and not self._send_rest():
            return
        try:
            data = self._receive(RECEIVE_BYTES)
        except WOULD_BLOCK:
            return
        except ConnectionResetError as error:
            lane = self._lane
            if lane is not None and self._served and self._answers.is_idle:
                self._send_again(lane)  # it was closed before this request came
            else:
                self._fail(f"the connection was lost: {error}")
            return
        except OSError as error:
            self._fail(f"the connection was lost: {error}")
            return
        now = clock()
        answers = self._answers
        # A repeated answer is known by its head and its length: 0.2 us instead of 3 us.
        if len(data) == answers.known_bytes and data.startswith(answers.known) and answers.is_idle:
            lane = self._lane
            if lane is not None and not self._rest:
                self._served += 1
                lane.responses = 1
                if self._looks:
                    head = answers.known
                    self._outcome.keep(lane, data[len(head) :], answers.heads[head].json_bytes)
                self._outcome.finish(lane, now)
                return
        self._take(data, now)

    def _take(self, data: bytes, now: int) -> None:
        """Any other data than a repeated answer."""
        lane = self._lane
        if lane is None:
            self.close()  # the server closed it, or sent data without a request
            return
        answers = self._answers
        if not data and answers.is_idle and self._served:
            self._send_again(lane)
            return
        try:
            pieces = answers.feed(data) if data else answers.end()
        except HttpAnswerError as error:
            self._fail(str(error))
            return
        head = answers.head
        if head is None:
            return
        if self._is_streaming and head.status == 200:
            self._take_events(lane, pieces, now)
        elif self._looks or head.status != 200:
            self._pieces += pieces
        if answers.is_whole:
            self._end(lane, head, now)

    def _take_events(self, lane: RequestLane, pieces: list[bytes], now: int) -> None:
        text = b"".join([*self._pieces, *pieces]).replace(b"\r\n", b"\n")
        *events, rest = text.split(b"\n\n")
        self._pieces = [rest]
        for event in events:
            if error := event_error(event):
                self._error = error
                continue
            lane.responses += 1
            self._outcome.respond(lane, now)
            if self._looks:
                self._outcome.keep(lane, event.partition(b":")[2].strip(), -1)

    def _end(self, lane: RequestLane, head: Head, now: int) -> None:
        """The answer is whole."""
        error = self._error
        body = b"".join(self._pieces)
        if head.status != 200:
            error = error_text(head.status, body)
        elif not self._is_streaming:
            lane.responses = 1
            if self._looks:
                self._outcome.keep(lane, body, head.json_bytes)
        elif not error and body.strip():
            error = f"expected whole events, got {body[:80]!r}"
        self._pieces = []
        self._error = ""
        self._served += 1
        if head.keeps_alive and not self._rest:
            self._answers.next()
        else:
            self.close()
        self._outcome.finish(lane, now, error)

    def _send_rest(self) -> bool:
        """Send what did not fit before; False if the connection was lost."""
        assert self._socket is not None
        try:
            sent = self._socket.send(self._rest)
        except WOULD_BLOCK:
            return True
        except OSError as error:
            self._fail(f"cannot send: {error}")
            return False
        self._rest = self._rest[sent:]
        if not self._rest:
            self._poller.want_write(self._socket.fileno(), wants=False)
            if self._lane is not None:
                self._lane.sent_ns = clock()
        return True

    def _send_again(self, lane: RequestLane) -> None:
        """The server closed a connection that it had served, as it may between requests."""
        self.close()
        self.begin(lane)

    def _fail(self, error: str) -> None:
        lane = self._lane
        self.close()
        if lane is not None:
            self._outcome.lose(lane, clock(), error)
