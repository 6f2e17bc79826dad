# SPDX-License-Identifier: Apache-2.0
"""Instances of decoupled models: generators that take turns on one thread.

Between two steps of its generators, the thread checks for messages of the server: a new batch, a
client that disconnected, credit for a slow client. A generator whose client has no credit is not
stepped.
"""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from pytriton.base.request_ids import set_request_ids
from pytriton.runtime.functions.host import ASYNC_CONCURRENCY, InstanceHost
from pytriton.runtime.functions.model_call import is_unrecoverable
from pytriton.runtime.functions.stream import ABANDONED, StreamBatch
from pytriton.runtime.transport.arena import IDLE_SECONDS
from pytriton.runtime.transport.frames import Cancel, Credit, Execute, ResponseItem
from pytriton.runtime.transport.response_outbox import MAX_HELD, ResponseOutbox

if TYPE_CHECKING:
    from pytriton.runtime.transport.channel import Payload, Received

# Maximum time between two checks for messages while generators are stepped.
_RECEIVE_INTERVAL_NS = 100_000
# After a slower step, the next one may be slow too: earlier responses are sent first.
_SLOW_STEP_NS = 100_000


class _Stream:
    """A generator that works on a batch."""

    __slots__ = ("batch", "is_slow", "responses")

    def __init__(self, batch: StreamBatch, responses: Generator[Any, None, None]) -> None:
        self.batch = batch
        self.responses = responses
        self.is_slow = True  # until the first step is measured


class StreamHost(InstanceHost):
    """Steps the generators of a plain decoupled callable in turn."""

    concurrency = ASYNC_CONCURRENCY

    def _serve(self) -> None:
        self._streams: dict[int, _Stream] = {}
        self._outbox = ResponseOutbox(self._channel)
        self._reader = self._make_reader()
        self._received_ns = 0
        try:
            while True:
                self._receive_messages()
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
                self._close_stream(stream)

    def _receive_messages(self) -> None:
        """Handles messages of the server; waits for one if no generator can be stepped."""
        while not any(stream.batch.may_send for stream in self._streams.values()):
            self._outbox.flush()
            self._on_message(self._reader.receive())
        now_ns = time.monotonic_ns()
        if now_ns - self._received_ns >= _RECEIVE_INTERVAL_NS:
            self._received_ns = now_ns
            while (received := self._channel.receive(socket.MSG_DONTWAIT)) is not None:
                self._on_message(received)

    def _on_message(self, received: Received) -> None:
        frame = received.frame
        if isinstance(frame, Execute):
            self._start_stream(received, frame)
        elif isinstance(frame, Cancel) and frame.batch in self._streams:
            stream = self._streams[frame.batch]
            item = stream.batch.cancel(frame.position)
            if item is not None:
                self._add([item], time.monotonic_ns())
            if stream.batch.is_abandoned:
                del self._streams[frame.batch]
                self._close_stream(stream)
                self._outbox.flush()
        elif isinstance(frame, Credit) and frame.batch in self._streams:
            self._streams[frame.batch].batch.credit(frame.position, frame.count)
        else:
            self.on_other(frame)

    def _start_stream(self, received: Received, execute: Execute) -> None:
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
        set_request_ids(batch.execute.ids or None)
        try:
            results = next(stream.responses, _END)
            if results is _END:
                self._add(batch.finish(), started_ns)
                del self._streams[batch.execute.batch]
                self._call.end_spans(batch.execute)
            else:
                self._outbox.add(functools.partial(self._make_items, batch, results), started_ns)
        except BaseException as error:  # noqa: BLE001  every error of user code is answered
            self._fail(stream, error)
        set_request_ids(None)
        stream.is_slow = time.monotonic_ns() - started_ns >= _SLOW_STEP_NS

    def _make_items(self, batch: StreamBatch, results: Any, payload: Payload) -> list[ResponseItem]:
        items = self._call.response_items(batch.execute, results, payload, is_final=False)
        return batch.filter(items)

    def _add(self, items: list[ResponseItem], started_ns: int) -> None:
        self._outbox.add(lambda _: items, started_ns)

    def _trim(self) -> None:
        self._outbox.trim(IDLE_SECONDS)

    def _fail(self, stream: _Stream, error: BaseException) -> None:
        text, code = self._call.error(stream.batch.execute, error)
        self._add(stream.batch.finish(text, code), time.monotonic_ns())
        self._streams.pop(stream.batch.execute.batch, None)
        self._call.end_spans(stream.batch.execute, text)
        self._close_stream(stream)
        if is_unrecoverable(error):
            self._outbox.flush()
            self._on_unrecoverable()

    def _close_stream(self, stream: _Stream) -> None:
        """Closes a generator that no client waits for; its exceptions are logged."""
        set_request_ids(stream.batch.execute.ids or None)
        try:
            stream.responses.close()
        except BaseException as error:  # noqa: BLE001  user code may raise anything
            self._call.log_raised_on_close(error)
        set_request_ids(None)
        self._call.end_spans(stream.batch.execute, ABANDONED)


_END = object()
