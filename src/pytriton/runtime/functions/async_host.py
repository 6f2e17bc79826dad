# SPDX-License-Identifier: Apache-2.0
"""Instances whose callable is a coroutine function: their batches overlap on one event loop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.request_ids import set_request_ids
from pytriton.runtime.functions.host import ASYNC_CONCURRENCY, InstanceHost
from pytriton.runtime.functions.model_call import is_unrecoverable
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.frames import BatchFailure, Execute
from pytriton.runtime.transport.loop_channel import LoopChannel

if TYPE_CHECKING:
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.frames import Frame


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
        frame: Frame
        stops = False
        try:
            results: Any = await self._call.infer_func(self._call.requests(received))
            finished_ns = time.monotonic_ns()
            frame = self._call.responses(execute, results, started_ns, finished_ns, payload)
        except BaseException as error:  # noqa: BLE001  every error of user code is answered
            stops = is_unrecoverable(error)
            frame = self._call.failure(execute, started_ns, error)
            payload = self._channel.payload()
        try:
            self._send(frame, payload)
        except Exception as error:  # noqa: BLE001  no memory for a large response: send a short error
            frame = self._call.failure(execute, started_ns, error)
            self._send(frame, self._channel.payload())
        self._call.end_spans(execute, frame.error if isinstance(frame, BatchFailure) else None)
        if stops:
            self._on_unrecoverable()

    def _send(self, frame: Frame, payload: Payload) -> None:
        if not self._closed.done():
            self._loop_channel.send(frame, payload)
