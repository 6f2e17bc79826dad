# SPDX-License-Identifier: Apache-2.0
"""A client of the HTTP port that speaks HTTP/2 from its first byte, and does no I/O of its own.

Its calls are those of HTTP/1.1, and so are the bodies of answers; each has a stream of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.workload.calls import POLITE, Call, Kind
from tests.workload.connection import ViolationError
from tests.workload.http2_connection import Http2ClientConnection, Stream, literal
from tests.workload.http_client import Events, Head, RequestWriter, end_answer

FRAMES = "frames"  # the text of an invalid call whose payload is frames, and not a request
_CACHE_ENTRIES = 4096
_NUMBER = re.compile(r"[0-9]{1,18}")
# RFC 9113, 8.2.2: these say something about a connection of HTTP/1.1.
_OF_CONNECTIONS = frozenset(
    ("connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade")
)


def split_request(text: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The fields that a request of HTTP/1.1 has over HTTP/2, and its body; nothing is checked."""
    head, _, body = text.partition(b"\r\n\r\n")
    line, *lines = head.split(b"\r\n")
    method, path, _ = line.split(b" ", 2)
    named = [each.partition(b":")[::2] for each in lines]
    fields = [(name.lower(), value.strip()) for name, value in named]
    hosts = [value for name, value in fields if name == b"host"]
    pseudo = [(b":method", method), (b":scheme", b"http"), (b":path", path)]
    pseudo += [(b":authority", value) for value in hosts]
    return pseudo + [each for each in fields if each[0] != b"host"], body


class _Answer:
    """What was read of an answer."""

    __slots__ = ("events", "head", "parts", "size")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.events = Events()
        self.parts: list[bytes] = []
        self.size = 0


class Http2Client(Http2ClientConnection):
    """One connection to the HTTP port, over HTTP/2.

    Args:
        now: see `ClientConnection`.
        call_later: the same.
        on_end: the same.
        writer: makes requests of HTTP/1.1; clients may share one.
        settings: those of `Http2ClientConnection`.
    """

    _blocks: dict[bytes, Head] = {}  # noqa: RUF012  of all connections
    _written: dict[bytes, bytes] = {}  # noqa: RUF012  header blocks, by heads of HTTP/1.1

    def __init__(
        self,
        now: Callable[[], float],
        call_later: Callable[..., Any],
        on_end: Callable[[Call], None],
        *,
        writer: RequestWriter | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(now, call_later, on_end, **settings)
        self._writer = writer or RequestWriter()

    def _is_raw(self, call: Call) -> bool:
        return call.kind is Kind.INVALID and call.text == FRAMES

    def _write_call(self, call: Call, *, is_new: bool) -> tuple[bytes, bytes]:
        assert is_new, "a stream has one request"
        text = self._writer.write(call)
        end = text.index(b"\r\n\r\n") + 4
        block = self._written.get(text[:end])
        if block is None:
            if len(self._written) > _CACHE_ENTRIES:
                self._written.clear()
            fields, _ = split_request(text)
            block = b"".join(literal(name, value) for name, value in fields)
            self._written[text[:end]] = block
        return block, text[end:]

    # Reading

    def _read_block(self, pairs: list[tuple[str, str]]) -> Head:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise ViolationError(f"a field is there twice: {pairs}")
        if any(name != name.lower() or name in _OF_CONNECTIONS for name in fields):
            raise ViolationError(f"a name has capitals, or is one of HTTP/1.1: {pairs}")
        if pairs[0][0] != ":status" or not re.fullmatch("[2-5][0-9][0-9]", pairs[0][1]):
            raise ViolationError(f"the head of a response is {pairs}")
        numbers: list[int | None] = []
        for name in ("content-length", "inference-header-content-length"):
            text = fields.get(name)
            if text is not None and _NUMBER.fullmatch(text) is None:
                raise ViolationError(f"{name} is {text!r}")
            numbers.append(None if text is None else int(text))
        return Head(
            int(fields[":status"]),
            {name.encode(): value.encode("latin-1") for name, value in fields.items()},
            numbers[0],
            numbers[1],
            is_last=False,
            is_events=fields.get("content-type", "").startswith("text/event-stream"),
        )

    def _take_block(self, stream_id: int, ends: bool, encoded: bytes) -> None:
        head = self._decode(encoded)
        stream = self._find(stream_id, "HEADERS")
        if stream is None:
            return
        if stream.has_head:
            raise ViolationError(f"a second head, or trailers came: {head.fields}")
        stream.has_head = True
        stream.answer = _Answer(head)
        if ends:
            self._end_answer(stream)

    def _take_body(self, stream: Stream, body: bytes, *, ends: bool) -> None:
        (call,) = stream.calls.values()
        call.outcome.received_bytes += len(body)
        if call.conduct is not POLITE and self._reacts(call):
            return
        answer = stream.answer
        answer.size += len(body)
        if answer.head.is_events:
            answer.events.take(call, body, self._now())
        else:
            answer.parts.append(body)
        if ends:
            self._end_answer(stream)

    def _end_answer(self, stream: Stream) -> None:
        answer, head = stream.answer, stream.answer.head
        if head.body_bytes not in (None, answer.size):
            raise ViolationError(f"expected {head.body_bytes} bytes, got {answer.size}")
        (call,) = stream.calls.values()
        end = end_answer(call, head, b"".join(answer.parts), answer.events, self._now())
        self._end_here(stream)
        self._finish(call, end)
        self._pump()
