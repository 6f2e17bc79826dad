# SPDX-License-Identifier: Apache-2.0
"""Instances of decoupled models: async generators that run at the same time on one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from msgspec import structs

from pytriton.base.request_ids import set_request_ids
from pytriton.runtime.functions.async_host import AsyncInstanceHost
from pytriton.runtime.functions.host import ABANDONED, StreamBatch
from pytriton.runtime.functions.model_call import is_unrecoverable
from pytriton.runtime.transport.frames import Cancel, Credit, Execute, ResponseItem, Responses

if TYPE_CHECKING:
    from pytriton.runtime.transport.channel import Payload, Received

_END = object()


class _AsyncStream:
    """An async generator that works on a batch."""

    __slots__ = ("batch", "changed", "task")

    def __init__(self, batch: StreamBatch) -> None:
        self.batch = batch
        self.changed = asyncio.Event()  # set if credit arrives or a client disconnects
        self.task: asyncio.Task[None] | None = None


class AsyncStreamHost(AsyncInstanceHost):
    """Runs the async generators of a decoupled callable at the same time."""

    async def _serve_async(self) -> None:
        self._streams: dict[int, _AsyncStream] = {}
        await super()._serve_async()

    def _on_message(self, received: Received) -> None:
        frame = received.frame
        if isinstance(frame, Execute):
            stream = self._streams[frame.batch] = _AsyncStream(StreamBatch(frame))
            stream.task = self._tasks.start(self._run_stream(stream, received))
            # Not in the coroutine, which never starts if its task is cancelled at once.
            stream.task.add_done_callback(lambda _: self._streams.pop(frame.batch))
        elif isinstance(frame, Cancel) and frame.batch in self._streams:
            self._cancel(self._streams[frame.batch], frame.position)
        elif isinstance(frame, Credit) and frame.batch in self._streams:
            stream = self._streams[frame.batch]
            stream.batch.credit(frame.position, frame.count)
            stream.changed.set()
        else:
            self.on_other(frame)

    def _cancel(self, stream: _AsyncStream, position: int) -> None:
        item = stream.batch.cancel(position)
        if item is not None:
            self._send_items([item], self._channel.payload(), time.monotonic_ns())
        if stream.batch.is_abandoned:
            assert stream.task is not None
            stream.task.cancel()
        stream.changed.set()

    async def _run_stream(self, stream: _AsyncStream, received: Received) -> None:
        batch = stream.batch
        set_request_ids(batch.execute.ids or None)  # of this task
        started_ns = time.monotonic_ns()
        last: list[ResponseItem] = []
        stops = False
        try:
            await self._stream(stream, self._call.requests(received))
            last = batch.finish()
        except BaseException as error:  # noqa: BLE001  every error of user code is answered
            stops = is_unrecoverable(error)
            if not batch.is_abandoned and not self._closed.done():
                last = batch.finish(*self._call.error(batch.execute, error))
            elif not isinstance(error, asyncio.CancelledError):
                self._call.log_raised_on_close(error)
        try:
            self._send_items(last, self._channel.payload(), started_ns)
        except Exception as error:  # noqa: BLE001  no memory for a long text: send a short error
            text = self._call.error_text(error)
            last = [structs.replace(item, error=text) for item in last]
            self._send_items(last, self._channel.payload(), started_ns)
        self._call.end_spans(batch.execute, last[0].error if last else ABANDONED)
        if stops:
            self._on_unrecoverable()

    async def _stream(self, stream: _AsyncStream, requests: list[Any]) -> None:
        batch = stream.batch
        responses = _async_responses(self._call.infer_func(requests))
        try:
            while True:
                while not batch.may_send:
                    stream.changed.clear()
                    await stream.changed.wait()
                started_ns = time.monotonic_ns()
                results = await anext(responses, _END)
                if results is _END:
                    return
                payload = self._channel.payload()
                items = self._call.response_items(batch.execute, results, payload, is_final=False)
                self._send_items(batch.filter(items), payload, started_ns)
        finally:
            await responses.aclose()

    def _send_items(self, items: list[ResponseItem], payload: Payload, started_ns: int) -> None:
        if items:
            self._send(Responses(started_ns, time.monotonic_ns(), items), payload)


async def _async_responses(results: Any) -> Any:
    """Yields the responses of an async callable: those it yields, or its single result."""
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
