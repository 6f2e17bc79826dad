# SPDX-License-Identifier: Apache-2.0
"""Instances whose callable is asynchronous: batches, or generators, overlap on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from msgspec import structs

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.errors import InputValueError
from pytriton.base.failure_records import FailureOrigin
from pytriton.base.request_ids import set_request_ids
from pytriton.runtime.functions.host import ABANDONED, ASYNC_CONCURRENCY, InstanceHost, StreamBatch
from pytriton.runtime.functions.model_call import is_unrecoverable
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.frames import (
    Cancel,
    Credit,
    Execute,
    ResponseItem,
    ResponsesFrame,
)
from pytriton.runtime.transport.loop_channel import LoopChannel

if TYPE_CHECKING:
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.frames import Answer

_END = object()


class AsyncInstanceHost(InstanceHost):
    """An instance whose callable is a coroutine function: its batches overlap."""

    concurrency = ASYNC_CONCURRENCY

    def _serve(self) -> None:
        asyncio.run(self._serve_async())

    async def _serve_async(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        self._tasks = BackgroundTasks(loop)
        trimmer = MemoryTrimmer(loop, self._channel.arena)
        self._loop_channel = LoopChannel(
            self._channel,
            loop,
            trimmer,
            self._call.instance_name,
            on_message=self._on_message,
            on_lost=lambda _: self._close(),
        )
        self._loop_channel.reads_ahead = True
        self._loop_channel.start()
        try:
            await self._closed
        finally:
            self._loop_channel.stop_watching()
            trimmer.stop()
            self._tasks.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _close(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)

    def _on_message(self, received: Received) -> None:
        if isinstance(received.frame, Execute):
            self._tasks.start(self._answer_async(received, received.frame))
        else:
            self.on_other(received.frame)

    async def _answer_async(self, received: Received, execute: Execute) -> None:
        set_request_ids(execute.ids or None)  # of this task
        started_ns = time.monotonic_ns()
        payload = self._channel.payload()
        try:
            requests, wrong = self._call.requests(received), {}
            try:
                results: Any = await self._call.infer_func(requests)
            except InputValueError:
                wrong = self._call.wrong_values(requests)
                if not wrong:
                    raise
                good = [each for at, each in enumerate(requests) if at not in wrong]
                results = await self._call.infer_func(good) if good else []
            finished_ns = time.monotonic_ns()
            frame = self._call.responses(execute, results, started_ns, finished_ns, payload, wrong)
        except BaseException as error:  # noqa: BLE001  every error of user code is answered
            if self._closed.done():
                self._log_on_close(error)
                self._call.end_spans(execute, ABANDONED)
            else:
                self._fail_batch(execute, started_ns, error)
        else:
            self._send_answer(execute, started_ns, frame, payload)

    def _log_on_close(self, error: BaseException) -> None:
        """Log what a callable raised that nobody waits for, beside that it was cancelled."""
        if not isinstance(error, asyncio.CancelledError):
            self._call.log_raised_on_close(error)

    def _send(self, frame: Answer, payload: Payload) -> None:
        if not self._closed.done():
            if frame.finished_ns >= self._meter.due_ns:
                self._meter.stamp(frame)
            frame.copied = self._meter.copies.take()
            self._loop_channel.send(frame, payload)


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
                text, code = self._call.error(batch.execute, error)
                last = batch.finish(text, code, self._call.origin(error))
            else:
                self._log_on_close(error)
        try:
            self._send_items(last, self._channel.payload(), started_ns)
        except Exception as error:  # noqa: BLE001  no memory for a long text: send a short error
            text = self._call.error_text(error)
            origin = FailureOrigin(type(error).__name__)
            last = [structs.replace(item, error=text, origin=origin) for item in last]
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
            self._send(ResponsesFrame(started_ns, time.monotonic_ns(), items), payload)


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
