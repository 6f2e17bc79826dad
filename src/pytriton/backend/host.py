# SPDX-License-Identifier: Apache-2.0
"""Where instances run in the user's process: one thread each, waiting on its channel.

A callable that is a plain function blocks its thread; coroutine functions share their thread's
event loop, so that many batches of one instance run at the same time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from pytriton.backend.model_call import is_unrecoverable
from pytriton.transport.arena import IDLE_SECONDS
from pytriton.transport.frames import BatchFailure, Execute

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pytriton.backend.model_call import ModelCall
    from pytriton.transport.channel import Channel, Payload, Received
    from pytriton.transport.frames import Frame

logger = logging.getLogger(__name__)

# How many batches the server may have running on one instance at a time.
SYNC_CONCURRENCY = 1
ASYNC_CONCURRENCY = 256


class InstanceHost:
    """Runs one instance of a model on a thread of its own until the channel ends."""

    concurrency = SYNC_CONCURRENCY

    def __init__(
        self, call: ModelCall, channel: Channel, on_unrecoverable: Callable[[], None]
    ) -> None:
        self._call = call
        self._channel = channel
        self._on_unrecoverable = on_unrecoverable
        self._thread = threading.Thread(
            target=self._run, name=f"pytriton-{call.instance_name}", daemon=True
        )

    def start(self) -> None:
        """Start to take batches."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether batches are taken."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait for the end; the server ends an instance by closing its channel."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._serve()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            logger.debug("%s: the server closed the channel", self._call.instance_name)
        except Exception:
            logger.exception("%s: the instance ended", self._call.instance_name)
        finally:
            self._channel.close()

    def _serve(self) -> None:
        channel = self._channel
        while True:
            received = self._next()
            if isinstance(received.frame, Execute):
                self._answer(received, received.frame)
            # Arrays that the callable did not keep go now, before this thread waits again.
            del received
            channel.gives_back_at_once = True

    def _next(self) -> Received:
        channel = self._channel
        while channel.has_notes or channel.arena.has_idle_segments:
            channel.link.socket.settimeout(IDLE_SECONDS)
            try:
                return self._wait()
            except TimeoutError:
                channel.forget_segments(channel.arena.trim())
                channel.send_notes()
            finally:
                channel.link.socket.settimeout(None)
        return self._wait()

    def _wait(self) -> Received:
        received = self._channel.receive()
        self._channel.gives_back_at_once = False
        assert received is not None
        return received

    def _answer(self, received: Received, execute: Execute) -> None:
        payload = self._channel.payload()
        started_ns = time.monotonic_ns()
        frame: Frame
        stops = False
        try:
            frame = self._call.run(received, payload)
        except BaseException as error:  # noqa: BLE001  whatever user code raises is answered
            stops = is_unrecoverable(error)
            frame = self._call.failure(execute, started_ns, error)
            payload = self._channel.payload()
        self._channel.send(frame, payload)
        self._call.end_spans(execute, frame.error if isinstance(frame, BatchFailure) else None)
        if stops:
            self._on_unrecoverable()


class AsyncInstanceHost(InstanceHost):
    """An instance whose callable is a coroutine function: its batches overlap."""

    concurrency = ASYNC_CONCURRENCY

    def _serve(self) -> None:
        asyncio.run(self._serve_async())

    async def _serve_async(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._channel.link.socket.setblocking(False)
        self._closed = loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._trimming: asyncio.TimerHandle | None = None
        loop.add_reader(self._channel.fileno(), self._on_readable)
        try:
            await self._closed
        finally:
            loop.remove_reader(self._channel.fileno())
            loop.remove_writer(self._channel.fileno())
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_readable(self) -> None:
        try:
            while (received := self._channel.receive()) is not None:
                if received.uses_blocks:
                    self._trim_later()
                self._on_message(received)
        except (EOFError, OSError):
            self._close()
        except Exception:  # what was said is lost, so the server would wait for ever
            logger.exception("%s: a message could not be read", self._call.instance_name)
            self._close()

    def _close(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)

    def _on_message(self, received: Received) -> None:
        if isinstance(received.frame, Execute):
            self._spawn(self._answer_async(received, received.frame))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer_async(self, received: Received, execute: Execute) -> None:
        started_ns = time.monotonic_ns()
        payload = self._channel.payload()
        frame: Frame
        stops = False
        try:
            results: Any = await self._call.infer_func(self._call.requests(received))
            finished_ns = time.monotonic_ns()
            frame = self._call.responses(execute, results, started_ns, finished_ns, payload)
        except BaseException as error:  # noqa: BLE001  whatever user code raises is answered
            stops = is_unrecoverable(error)
            frame = self._call.failure(execute, started_ns, error)
            payload = self._channel.payload()
        self._send(frame, payload)
        self._call.end_spans(execute, frame.error if isinstance(frame, BatchFailure) else None)
        if stops:
            self._on_unrecoverable()

    def _send(self, frame: Frame, payload: Payload) -> None:
        if self._closed.done():
            return
        if payload.blocks:
            self._trim_later()
        try:
            self._channel.send(frame, payload)
        except OSError:
            self._close()
        else:
            self._watch_unsent()

    def _watch_unsent(self) -> None:
        if self._channel.link.has_unsent:
            self._loop.add_writer(self._channel.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        try:
            self._channel.link.flush()
        except OSError:
            self._close()
            return
        if not self._channel.link.has_unsent:
            self._loop.remove_writer(self._channel.fileno())

    def _trim_later(self) -> None:
        if self._trimming is None:
            self._trimming = self._loop.call_later(IDLE_SECONDS, self._trim)

    def _trim(self) -> None:
        self._trimming = None
        channel = self._channel
        channel.forget_segments(channel.arena.trim())
        try:
            channel.send_notes()
        except OSError:
            self._close()
            return
        self._watch_unsent()
        if channel.maps_memory or channel.arena.reserved_bytes:
            self._trim_later()


def host_for(infer_func: Callable[..., Any]) -> type[InstanceHost]:
    """The kind of host that a callable needs."""
    call = infer_func if inspect.isroutine(infer_func) else type(infer_func).__call__
    if inspect.iscoroutinefunction(infer_func) or inspect.iscoroutinefunction(call):
        return AsyncInstanceHost
    return InstanceHost
