# SPDX-License-Identifier: Apache-2.0
"""Instances of decoupled models: generators that take turns on one thread.

Between two steps of its generators a thread looks whether the server said something: a new batch, a
client that went away, credit for one that is slow. A generator whose client has not taken what it
was sent is not stepped at all.
"""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from pytriton.backend.host import ASYNC_CONCURRENCY, InstanceHost
from pytriton.backend.model_call import is_unrecoverable
from pytriton.backend.stream import ABANDONED, StreamBatch
from pytriton.errors import ErrorCode
from pytriton.transport.arena import IDLE_SECONDS
from pytriton.transport.frames import Cancel, Credit, Execute, ResponseItem
from pytriton.transport.response_outbox import MAX_HELD, ResponseOutbox

if TYPE_CHECKING:
    from pytriton.transport.channel import Payload, Received

# How long the server may have to wait for an ear while generators are stepped.
_HEAR_EVERY_NS = 100_000
# A step that took longer may do so again: what was produced before it is sent first.
_SLOW_STEP_NS = 100_000


class _Stream:
    """A generator at work on a batch."""

    __slots__ = ("batch", "is_slow", "responses")

    def __init__(self, batch: StreamBatch, responses: Generator[Any, None, None]) -> None:
        self.batch = batch
        self.responses = responses
        self.is_slow = True  # not known yet


class StreamHost(InstanceHost):
    """Steps the generators of a plain decoupled callable in turn."""

    concurrency = ASYNC_CONCURRENCY

    def _serve(self) -> None:
        self._streams: dict[int, _Stream] = {}
        self._outbox = ResponseOutbox(self._channel)
        self._reader = self._make_reader()
        self._heard_ns = 0
        try:
            while True:
                self._hear()
                streams = [s for s in self._streams.values() if s.batch.may_send]
                for stream in streams:
                    self._step(stream)
                if len(self._outbox) >= MAX_HELD or any(s.is_slow for s in streams):
                    self._outbox.flush()
                else:
                    self._outbox.hold()
        finally:
            self._outbox.close()
            for stream in self._streams.values():
                self._abandon(stream)

    def _hear(self) -> None:
        """Take what the server said; wait for it where there is nothing else to do."""
        while not any(stream.batch.may_send for stream in self._streams.values()):
            self._outbox.flush()
            self._on_message(self._reader.receive())
        now_ns = time.monotonic_ns()
        if now_ns - self._heard_ns >= _HEAR_EVERY_NS:
            self._heard_ns = now_ns
            while (received := self._channel.receive(socket.MSG_DONTWAIT)) is not None:
                self._on_message(received)

    def _on_message(self, received: Received) -> None:
        frame = received.frame
        if isinstance(frame, Execute):
            self._begin(received, frame)
        elif isinstance(frame, Cancel) and frame.batch in self._streams:
            stream = self._streams[frame.batch]
            item = stream.batch.cancel(frame.position)
            if item is not None:
                self._add([item], time.monotonic_ns())
            if stream.batch.is_abandoned:
                del self._streams[frame.batch]
                self._abandon(stream)
                self._outbox.flush()
        elif isinstance(frame, Credit) and frame.batch in self._streams:
            self._streams[frame.batch].batch.credit(frame.position, frame.count)

    def _begin(self, received: Received, execute: Execute) -> None:
        batch = StreamBatch(execute)
        stream = _Stream(batch, self._responses(received))
        self._streams[execute.batch] = stream

    def _responses(self, received: Received) -> Generator[Any, None, None]:
        results = self._call.infer_func(self._call.requests(received))
        if isinstance(results, Iterator):
            yield from results
        else:
            yield results

    def _step(self, stream: _Stream) -> None:
        if stream.is_slow:
            self._outbox.flush()
        started_ns = time.monotonic_ns()
        batch = stream.batch
        try:
            results = next(stream.responses, _END)
            if results is _END:
                self._add(batch.finish(), started_ns)
                del self._streams[batch.execute.batch]
                self._call.end_spans(batch.execute)
            else:
                self._outbox.add(functools.partial(self._make_items, batch, results), started_ns)
        except BaseException as error:  # noqa: BLE001  whatever user code raises is answered
            self._fail(stream, error)
        stream.is_slow = time.monotonic_ns() - started_ns >= _SLOW_STEP_NS

    def _make_items(self, batch: StreamBatch, results: Any, payload: Payload) -> list[ResponseItem]:
        items = self._call.response_items(batch.execute, results, payload, is_final=False)
        return batch.filter(items)

    def _add(self, items: list[ResponseItem], started_ns: int) -> None:
        self._outbox.add(lambda _: items, started_ns)

    def _trim(self) -> None:
        self._outbox.trim(IDLE_SECONDS)

    def _fail(self, stream: _Stream, error: BaseException) -> None:
        text = self._call.error_text(error)
        self._add(stream.batch.finish(text, ErrorCode.INTERNAL), time.monotonic_ns())
        self._streams.pop(stream.batch.execute.batch, None)
        self._call.end_spans(stream.batch.execute, text)
        self._abandon(stream)
        if is_unrecoverable(error):
            self._outbox.flush()
            self._on_unrecoverable()

    def _abandon(self, stream: _Stream) -> None:
        """End a generator that nobody listens to, whatever it says about that."""
        try:
            stream.responses.close()
        except BaseException as error:  # noqa: BLE001  as anything else that user code raises
            self._call.log_raised_at_end(error)
        self._call.end_spans(stream.batch.execute, ABANDONED)


_END = object()
