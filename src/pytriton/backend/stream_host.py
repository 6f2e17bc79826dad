# SPDX-License-Identifier: Apache-2.0
"""Instances of decoupled models: generators that take turns on a thread, async ones that overlap.

Between two steps of its generators a thread looks whether the server said something: a new batch, a
client that went away, credit for one that is slow. A generator whose client has not taken what it
was sent is not stepped at all.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any

from pytriton.backend.host import (
    ASYNC_CONCURRENCY,
    AsyncInstanceHost,
    InstanceHost,
    host_for,
)
from pytriton.backend.model_call import is_unrecoverable
from pytriton.backend.outbox import MAX_HELD, Outbox
from pytriton.backend.stream import StreamAccount
from pytriton.errors import ErrorCode
from pytriton.transport.frames import Cancel, Credit, Execute, ResponseItem, Responses

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.transport.channel import Payload, Received

# How long the server may have to wait for an ear while generators are stepped.
_HEAR_EVERY_NS = 100_000
# A step that took longer may do so again: what was produced before it is sent first.
_SLOW_STEP_NS = 100_000
# What the span of a request says whose client did not wait for its end.
_ABANDONED = "the client went away"


class _Stream:
    """A generator at work on a batch."""

    __slots__ = ("account", "is_slow", "responses")

    def __init__(self, account: StreamAccount, responses: Generator[Any, None, None]) -> None:
        self.account = account
        self.responses = responses
        self.is_slow = True  # not known yet


class StreamHost(InstanceHost):
    """Steps the generators of a plain decoupled callable in turn."""

    concurrency = ASYNC_CONCURRENCY

    def _serve(self) -> None:
        self._streams: dict[int, _Stream] = {}
        self._outbox = Outbox(self._channel)
        self._heard_ns = 0
        try:
            while True:
                self._hear()
                streams = [s for s in self._streams.values() if s.account.may_send]
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
        while not any(stream.account.may_send for stream in self._streams.values()):
            self._outbox.flush()
            self._channel.gives_back_at_once = True
            self._on_message(self._next())
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
            item = stream.account.cancel(frame.position)
            if item is not None:
                self._add([item], time.monotonic_ns())
            if stream.account.is_abandoned:
                del self._streams[frame.batch]
                self._abandon(stream)
                self._outbox.flush()
        elif isinstance(frame, Credit) and frame.batch in self._streams:
            self._streams[frame.batch].account.credit(frame.position, frame.count)

    def _begin(self, received: Received, execute: Execute) -> None:
        account = StreamAccount(execute)
        stream = _Stream(account, self._responses(received))
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
        account = stream.account
        outbox = self._outbox
        try:
            results = next(stream.responses, _END)
            if results is _END:
                self._add(account.finish(), started_ns)
                del self._streams[account.execute.batch]
                self._call.end_spans(account.execute)
            else:
                with outbox.lock:
                    items = self._call.response_items(
                        account.execute, results, outbox.payload, is_final=False
                    )
                    outbox.add(account.filter(items), started_ns)
        except BaseException as error:  # noqa: BLE001  whatever user code raises is answered
            self._fail(stream, error)
        stream.is_slow = time.monotonic_ns() - started_ns >= _SLOW_STEP_NS

    def _add(self, items: list[ResponseItem], started_ns: int) -> None:
        with self._outbox.lock:
            self._outbox.add(items, started_ns)

    def _fail(self, stream: _Stream, error: BaseException) -> None:
        text = self._call.error_text(error)
        self._add(stream.account.finish(text, ErrorCode.INTERNAL), time.monotonic_ns())
        self._streams.pop(stream.account.execute.batch, None)
        self._call.end_spans(stream.account.execute, text)
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
        self._call.end_spans(stream.account.execute, _ABANDONED)


_END = object()


class _AsyncStream:
    """An async generator at work on a batch."""

    __slots__ = ("account", "changed", "task")

    def __init__(self, account: StreamAccount) -> None:
        self.account = account
        self.changed = asyncio.Event()  # credit came, or a client that had none left
        self.task: asyncio.Task[None] | None = None


class AsyncStreamHost(AsyncInstanceHost):
    """Runs the async generators of a decoupled callable at the same time."""

    async def _serve_async(self) -> None:
        self._streams: dict[int, _AsyncStream] = {}
        await super()._serve_async()

    def _on_message(self, received: Received) -> None:
        frame = received.frame
        if isinstance(frame, Execute):
            stream = self._streams[frame.batch] = _AsyncStream(StreamAccount(frame))
            stream.task = self._spawn(self._run_stream(stream, received))
            # Not in the coroutine, which never begins where its task is cancelled at once.
            stream.task.add_done_callback(lambda _: self._streams.pop(frame.batch))
        elif isinstance(frame, Cancel) and frame.batch in self._streams:
            self._cancel(self._streams[frame.batch], frame.position)
        elif isinstance(frame, Credit) and frame.batch in self._streams:
            stream = self._streams[frame.batch]
            stream.account.credit(frame.position, frame.count)
            stream.changed.set()

    def _cancel(self, stream: _AsyncStream, position: int) -> None:
        item = stream.account.cancel(position)
        if item is not None:
            self._send_items([item], self._channel.payload(), time.monotonic_ns())
        if stream.account.is_abandoned:
            assert stream.task is not None
            stream.task.cancel()
        stream.changed.set()

    async def _run_stream(self, stream: _AsyncStream, received: Received) -> None:
        account = stream.account
        started_ns = time.monotonic_ns()
        last: list[ResponseItem] = []
        stops = False
        try:
            await self._stream(stream, self._call.requests(received))
            last = account.finish()
        except BaseException as error:  # noqa: BLE001  whatever user code raises is answered
            stops = is_unrecoverable(error)
            if not account.is_abandoned and not self._closed.done():
                last = account.finish(self._call.error_text(error), ErrorCode.INTERNAL)
            elif not isinstance(error, asyncio.CancelledError):
                self._call.log_raised_at_end(error)
        self._send_items(last, self._channel.payload(), started_ns)
        self._call.end_spans(account.execute, last[0].error if last else _ABANDONED)
        if stops:
            self._on_unrecoverable()

    async def _stream(self, stream: _AsyncStream, requests: list[Any]) -> None:
        account = stream.account
        responses = _async_responses(self._call.infer_func(requests))
        try:
            while True:
                while not account.may_send:
                    stream.changed.clear()
                    await stream.changed.wait()
                started_ns = time.monotonic_ns()
                results = await anext(responses, _END)
                if results is _END:
                    return
                payload = self._channel.payload()
                items = self._call.response_items(account.execute, results, payload, is_final=False)
                self._send_items(account.filter(items), payload, started_ns)
        finally:
            await responses.aclose()

    def _send_items(self, items: list[ResponseItem], payload: Payload, started_ns: int) -> None:
        if items:
            self._send(Responses(started_ns, time.monotonic_ns(), items), payload)


async def _async_responses(results: Any) -> Any:
    """What an async callable gives, as an async generator: its yields, or its one result."""
    if isinstance(results, AsyncIterator):
        try:
            async for result in results:
                yield result
        finally:
            close = getattr(results, "aclose", None)
            if close is not None:
                await close()
    else:
        yield await results


def stream_host_for(infer_func: Callable[..., Any]) -> type[InstanceHost]:
    """The kind of host that a decoupled callable needs."""
    call = infer_func if inspect.isroutine(infer_func) else type(infer_func).__call__
    is_async = host_for(infer_func) is AsyncInstanceHost
    if is_async or inspect.isasyncgenfunction(infer_func) or inspect.isasyncgenfunction(call):
        return AsyncStreamHost
    return StreamHost
