# SPDX-License-Identifier: Apache-2.0
"""The backends of asynchronous callables: batches, or generators, overlap on an event loop."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.errors import InputValueError
from pytriton.base.request_ids import set_request_ids
from pytriton.runtime.functions.backends import ABANDONED, ASYNC_CONCURRENCY, FunctionBackend
from pytriton.runtime.functions.host import InstanceHost
from pytriton.runtime.functions.model_call import is_unrecoverable
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.frames import ResponseItem, ResponsesFrame
from pytriton.runtime.transport.loop_channel import LoopChannel
from pytriton.runtime.transport.response_outbox import ResponseOutbox, failed_item

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.backend.batch import WorkerBatch
    from pytriton.runtime.backend.flow_control import OpenBatches
    from pytriton.runtime.transport.channel import Payload
    from pytriton.runtime.transport.frames import Answer, Frame, Initialize, Initialized

_END = object()


class LoopOutbox(ResponseOutbox):
    """Sends over the channel of an event loop, which never waits."""

    loop_channel: LoopChannel
    is_over = False  # nobody hears any more

    def send(self, make: Callable[[Payload], Frame]) -> None:
        """See `ResponseOutbox`."""
        payload = self.channel.payload()
        self.deliver(make(payload), payload)  # type: ignore[arg-type]  # functions only answer

    def deliver(self, answer: Answer, payload: Payload) -> None:
        """Send an answer, whose tensors are in the payload."""
        if self.is_over:
            return
        meter = self._meter
        if answer.finished_ns >= meter.due_ns:
            meter.stamp(answer)
        answer.copied = meter.copies.take()
        self.loop_channel.send(answer, payload)


class LoopHost(InstanceHost):
    """Runs one instance of a model on an event loop, which is its thread."""

    backend: CoroutineBackend

    @property
    def is_over(self) -> bool:  # type: ignore[override]  # it is computed here
        """Whether the server has ended the instance."""
        return self._closed.done()

    def _serve(self) -> None:
        asyncio.run(self._serve_async())

    async def _serve_async(self) -> None:
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        self._outbox = outbox = LoopOutbox(self._channel, self._meter)
        trimmer = MemoryTrimmer(loop, self._channel.arena)
        self._load(outbox)
        outbox.loop_channel = channel = LoopChannel(
            self._channel,
            loop,
            trimmer,
            self.backend.call.instance_name,
            on_message=self._on_message,
            on_lost=lambda _: self._close(),
        )
        channel.reads_ahead = True
        channel.start()
        try:
            await self._closed
        finally:
            channel.stop_watching()
            trimmer.stop()
            self.backend.close()
            await asyncio.gather(*self.backend.tasks, return_exceptions=True)

    def _close(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
            self._outbox.is_over = True


class CoroutineBackend(FunctionBackend):
    """Calls a coroutine function, whose batches overlap."""

    host_class = LoopHost
    concurrency = ASYNC_CONCURRENCY

    def load(self, frame: Initialize, batches: OpenBatches) -> Initialized:
        """See `Backend`; called on the event loop."""
        self.tasks = BackgroundTasks(asyncio.get_running_loop())
        return super().load(frame, batches)

    def run(self, batch: WorkerBatch) -> None:
        """See `Backend`."""
        self.tasks.start(self._answer_async(batch))

    def close(self) -> None:
        """See `Backend`."""
        self.tasks.cancel()

    async def _answer_async(self, batch: WorkerBatch) -> None:
        set_request_ids(batch.execute.ids or None)  # of this task
        call = self.call
        make = None
        try:
            requests, wrong = call.requests(batch), {}
            try:
                results: Any = await call.infer_func(requests)
            except InputValueError:
                wrong = call.wrong_values(requests)
                if not wrong:
                    raise
                good = [each for at, each in enumerate(requests) if at not in wrong]
                results = await call.infer_func(good) if good else []
            make = call.answer_of(batch, results, wrong)
            batch.answer(make)
        except BaseException as error:
            if make is not None and isinstance(error, OSError):
                raise  # of the channel
            if self.messages.is_over:
                self._log_on_close(error)
                call.end_spans(batch.execute, ABANDONED)
            else:
                self._fail(batch, error)
        else:
            if batch.execute.traces:
                call.end_spans(batch.execute)

    def _log_on_close(self, error: BaseException) -> None:
        """Log what a callable raised that nobody waits for, beside that it was cancelled."""
        if not isinstance(error, asyncio.CancelledError):
            self.call.log_raised_on_close(error)


class AsyncGeneratorBackend(CoroutineBackend):
    """Runs the async generators of a decoupled callable at the same time."""

    is_decoupled = True

    def run(self, batch: WorkerBatch) -> None:
        """See `Backend`."""
        batch.open_windows()
        changed = asyncio.Event()  # set if credit arrives or a client disconnects
        task = self.tasks.start(self._run_stream(batch, changed))
        batch.on_credit = changed.set
        batch.on_cancel = functools.partial(self._on_cancel, batch, task, changed)

    def _on_cancel(
        self, batch: WorkerBatch, task: asyncio.Task[None], changed: asyncio.Event, position: int
    ) -> None:
        self._send_items(batch.give_up(position), time.monotonic_ns())
        if batch.is_abandoned:
            task.cancel()
        changed.set()

    async def _run_stream(self, batch: WorkerBatch, changed: asyncio.Event) -> None:
        set_request_ids(batch.execute.ids or None)  # of this task
        last: list[ResponseItem] = []
        stops = False
        try:
            await self._stream(batch, changed)
            last = batch.finish()
        except BaseException as error:  # noqa: BLE001  every error of user code is answered
            stops = is_unrecoverable(error)
            if not batch.is_abandoned and not self.messages.is_over:
                last = batch.finish(error)
            else:
                self._log_on_close(error)
        try:
            self._send_items(last, batch.started_ns)
        except Exception as error:  # noqa: BLE001  no memory for a long text: send a short error
            self._send_items([failed_item(item, error) for item in last], batch.started_ns)
        self.call.end_spans(batch.execute, last[0].error if last else ABANDONED)
        if stops:
            self._on_unrecoverable()

    async def _stream(self, batch: WorkerBatch, changed: asyncio.Event) -> None:
        call = self.call
        responses = _async_responses(call.infer_func(call.requests(batch)))
        try:
            while True:
                while not batch.may_send:
                    changed.clear()
                    await changed.wait()
                started_ns = time.monotonic_ns()
                results = await anext(responses, _END)
                if results is _END:
                    return
                payload = self._batches.outbox.channel.payload()
                items = call.response_items(batch.execute, results, payload, is_final=False)
                self._send_items(batch.filter(items), started_ns, payload)
        finally:
            await responses.aclose()

    def _send_items(
        self, items: list[ResponseItem], started_ns: int, payload: Payload | None = None
    ) -> None:
        outbox = self._batches.outbox
        assert isinstance(outbox, LoopOutbox)
        if items:
            frame = ResponsesFrame(started_ns, time.monotonic_ns(), items)
            outbox.deliver(frame, payload or outbox.channel.payload())


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
