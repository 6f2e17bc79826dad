# SPDX-License-Identifier: Apache-2.0
"""An asyncio event loop on the simulated machine, with transports that behave as uvloop's."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.files import File, SocketFile
from tests.simulation.machine import SECOND_NS, Machine

_HIGH_WATER_BYTES = 64 << 10
_LOW_WATER_BYTES = 16 << 10
_READ_BYTES = 256 << 10
_MOST_ITERATIONS = 10_000  # without waiting for anything
_ITERATION_NS = 2000  # what an iteration takes


class Handle:
    """A call to come, as asyncio's and uvloop's handles."""

    __slots__ = ("_arguments", "_callback", "_context", "_when_s")

    def __init__(
        self,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        context: contextvars.Context | None,
        when_s: float = 0.0,
    ) -> None:
        self._callback: Callable[..., object] | None = callback
        self._arguments = arguments
        self._context = contextvars.copy_context() if context is None else context
        self._when_s = when_s

    def when(self) -> float:
        return self._when_s

    def cancel(self) -> None:
        self._callback = None
        self._arguments = ()

    def cancelled(self) -> bool:
        return self._callback is None

    def run(self) -> None:
        if self._callback is not None:
            self._context.run(self._callback, *self._arguments)


class _Watch:
    """The callbacks of one descriptor."""

    __slots__ = ("file", "on_event", "reader", "writer")

    def __init__(self, file: File) -> None:
        self.file = file
        self.reader: Handle | None = None
        self.writer: Handle | None = None
        self.on_event: Callable[[File], None]


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop of a simulated thread."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[int, int, Handle]] = []
        self._watches: dict[int, _Watch] = {}
        self._hot: dict[int, None] = {}  # descriptors that may be ready
        self._thread: Any = None
        self._is_stopping = False
        self._is_closed = False
        self._is_running = False
        self._iterations = 0  # since it last waited
        self._signals: dict[int, Handle] = {}
        self._executor: Any = None
        self.transports: dict[SimulatedTransport, None] = {}
        self.unhandled: list[dict[str, Any]] = []  # what reached the exception handler

    # Time and calls

    def time(self) -> float:
        return self.machine.now_ns / SECOND_NS

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        handle = self.call_soon(callback, *args, context=context)
        self._wake()
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        when_ns = self.machine.now_ns + max(0, round(delay * SECOND_NS))
        return self._call_at_ns(when_ns, callback, args, context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        return self._call_at_ns(round(when * SECOND_NS), callback, args, context)

    def _call_at_ns(
        self,
        when_ns: int,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> Handle:
        handle = Handle(callback, arguments, context, when_ns / SECOND_NS)
        heapq.heappush(self._timers, (when_ns, self.machine.next_number(), handle))
        return handle

    @property
    def timer_count(self) -> int:
        """The number of timers whose time has not come."""
        return sum(not handle.cancelled() for _, _, handle in self._timers)

    # Running

    def run_forever(self) -> None:
        machine = self.machine
        self._thread = machine.current
        self._is_running = True
        asyncio_events._set_running_loop(self)
        try:
            while not self._is_stopping:
                self._run_once()
        finally:
            self._is_stopping = self._is_running = False
            self._thread = None
            asyncio_events._set_running_loop(None)

    def run_until_complete(self, future: Any) -> Any:
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(lambda _: self.stop())
        self.run_forever()
        return task.result()

    def stop(self) -> None:
        self._is_stopping = True
        self._wake()

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True
        for descriptor in list(self._watches):
            self._forget(descriptor)
        self._ready.clear()
        self._timers.clear()

    def _run_once(self) -> None:
        machine = self.machine
        machine.now_ns += _ITERATION_NS
        ready = self._ready
        self._poll()
        self._iterations += 1
        if self._iterations > _MOST_ITERATIONS:
            calls = [handle._callback for handle in ready]
            machine.give_up(f"an event loop of {machine.process.name} spins: it calls {calls}")
        while not ready:
            self._iterations = 0
            timers = self._timers
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
            machine.wait(timers[0][0] if timers else None)
            if self._is_stopping:
                return
            self._poll()
        for _ in range(len(ready)):
            handle = ready.popleft()
            try:
                handle.run()
            except (SystemExit, KeyboardInterrupt):
                raise
            except Exception as error:  # noqa: BLE001  as every event loop does
                self.call_exception_handler(
                    {"message": f"Exception in callback {handle._callback!r}", "exception": error}
                )

    def _poll(self) -> None:
        """Queue what has become due or ready."""
        ready, now_ns, timers = self._ready, self.machine.now_ns, self._timers
        for descriptor in list(self._hot):
            watch = self._watches[descriptor]
            is_ready = False
            if watch.reader is not None and watch.file.is_readable:
                ready.append(watch.reader)
                is_ready = True
            if watch.writer is not None and watch.file.is_writable:
                ready.append(watch.writer)
                is_ready = True
            if not is_ready:
                del self._hot[descriptor]
        while timers and timers[0][0] <= now_ns:
            handle = heapq.heappop(timers)[2]
            if not handle.cancelled():
                ready.append(handle)

    def _wake(self) -> None:
        if self._thread is not None:
            self.machine.wake(self._thread)

    # Descriptors

    def _watch(self, descriptor: int) -> _Watch:
        watch = self._watches.get(descriptor)
        if watch is None:
            file = self.machine.file_of(descriptor)
            self._watches[descriptor] = watch = _Watch(file)

            def on_event(_: File) -> None:
                self._hot[descriptor] = None
                self._wake()

            watch.on_event = on_event
            file.watchers.append(on_event)
        self._hot[descriptor] = None
        return watch

    def _forget(self, descriptor: int) -> None:
        watch = self._watches.pop(descriptor)
        self._hot.pop(descriptor, None)
        if watch.on_event in watch.file.watchers:
            watch.file.watchers.remove(watch.on_event)

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._watch(_number(fd)).reader = Handle(callback, args, None)

    def add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._watch(_number(fd)).writer = Handle(callback, args, None)

    def remove_reader(self, fd: Any) -> bool:
        return self._remove(_number(fd), "reader")

    def remove_writer(self, fd: Any) -> bool:
        return self._remove(_number(fd), "writer")

    def _remove(self, descriptor: int, side: str) -> bool:
        watch = self._watches.get(descriptor)
        if watch is None or getattr(watch, side) is None:
            return False
        getattr(watch, side).cancel()
        setattr(watch, side, None)
        if watch.reader is None and watch.writer is None:
            self._forget(descriptor)
        return True

    @property
    def watch_count(self) -> int:
        """The number of descriptors that are watched."""
        return len(self._watches)

    # Futures, tasks, threads, signals

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> Any:
        return asyncio.Task(coro, loop=self, name=name)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a simulated thread."""
        future = self.create_future()
        process = self.machine.process
        context = contextvars.copy_context()

        def finish(result: Any, error: BaseException | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = context.run(func, *args)
            except Exception as raised:  # noqa: BLE001  the caller gets it
                error = raised
            if not self._is_closed:
                self.call_soon_threadsafe(finish, result, error)

        if self.machine.thread_limit is not None and len(process.threads) >= (
            self.machine.thread_limit
        ):
            raise RuntimeError("can't start new thread")
        process.start_thread(work, "executor")
        return future

    def set_default_executor(self, executor: Any) -> None:
        self._executor = executor

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Simulated threads end with their work."""

    async def shutdown_asyncgens(self) -> None:
        """Asynchronous generators of the project are closed by those that made them."""

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self.machine.process.signal_handlers[int(sig)] = lambda number, frame: (
            self.call_soon_threadsafe(callback, *args)
        )

    def remove_signal_handler(self, sig: int) -> bool:
        return self.machine.process.signal_handlers.pop(int(sig), None) is not None

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.unhandled.append(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.machine.note("loop", context.get("message"), repr(context.get("exception")))
        self.machine.unhandled.append(context)
        self.unhandled.append(context)

    async def connect_accepted_socket(
        self, protocol_factory: Callable[[], Any], sock: Any, *, ssl: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        """Make a transport and a protocol for an accepted client."""
        assert ssl is None, "the simulation has no TLS"
        protocol = protocol_factory()
        return SimulatedTransport(self, sock, protocol), protocol


def _number(descriptor: Any) -> int:
    return descriptor if isinstance(descriptor, int) else descriptor.fileno()


class SimulatedTransport(asyncio.Transport):
    """The server's end of a client's connection."""

    def __init__(self, loop: SimulatedLoop, sock: Any, protocol: Any) -> None:
        self._loop = loop
        self._socket = sock
        self._descriptor = sock.fileno()
        self._file: SocketFile = sock.file
        self._protocol: Any = None
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._is_closing = False
        self._is_paused = False  # the protocol was told to pause
        self._is_reading = True
        self._sends_end = False
        self._lost = False
        loop.transports[self] = None
        self.set_protocol(protocol)
        loop.call_soon(self._start)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> Any:
        return self._protocol

    def _start(self) -> None:
        if self._lost:
            return
        self._protocol.connection_made(self)
        if self._is_reading and not self._is_closing:
            self._loop.add_reader(self._descriptor, self._on_readable)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self._socket
        if name == "peername":
            return self._socket.getpeername()
        if name == "sockname":
            return self._socket.getsockname()
        return default

    # Reading

    def pause_reading(self) -> None:
        if self._is_reading and not self._is_closing:
            self._is_reading = False
            self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        if not self._is_reading and not self._is_closing:
            self._is_reading = True
            self._loop.add_reader(self._descriptor, self._on_readable)

    def is_reading(self) -> bool:
        return self._is_reading

    def _on_readable(self) -> None:
        if self._is_closing:
            return
        protocol = self._protocol
        buffer = memoryview(protocol.get_buffer(-1)) if self._is_buffered else None
        try:
            data = self._socket.recv(_READ_BYTES if buffer is None else len(buffer))
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if not data:
            self._on_end()
        elif buffer is None:
            protocol.data_received(data)
        else:
            buffer[: len(data)] = data
            protocol.buffer_updated(len(data))

    def _on_end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self._is_reading = False
        if not self._protocol.eof_received():
            self.close()

    # Writing

    def write(self, data: Any) -> None:
        if self._lost or self._sends_end:
            return
        if not self._unsent:
            data = self._send(data)
            if not len(data):
                return
        if self._lost:
            return
        kept = bytes(data)
        self._unsent.append(kept)
        self._unsent_bytes += len(kept)
        self._loop.add_writer(self._descriptor, self._on_writable)
        if self._unsent_bytes > _HIGH_WATER_BYTES and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def _send(self, data: Any) -> Any:
        """Send what the socket takes; returns the rest."""
        if not isinstance(data, bytes):
            data = memoryview(data).cast("B")
        if not len(data):
            return data
        try:
            return data[self._socket.send(data) :]
        except BlockingIOError:
            return data
        except OSError as error:
            self._lose(error)
            return b""

    def _on_writable(self) -> None:
        while self._unsent:
            first = self._unsent[0]
            rest = self._send(first)
            if self._lost:
                return
            self._unsent_bytes -= len(first) - len(rest)
            if len(rest):
                self._unsent[0] = bytes(rest)
                break
            self._unsent.popleft()
        if self._is_paused and self._unsent_bytes <= _LOW_WATER_BYTES:
            self._is_paused = False
            self._protocol.resume_writing()
        if not self._unsent and not self._lost:
            self._loop.remove_writer(self._descriptor)
            if self._is_closing:
                self._lose(None)
            elif self._sends_end:
                self._file.shut_down()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return _LOW_WATER_BYTES, _HIGH_WATER_BYTES

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._sends_end and not self._is_closing:
            self._sends_end = True
            if not self._unsent:
                self._file.shut_down()

    # The end

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._loop.remove_reader(self._descriptor)
        if not self._unsent:
            self._lose(None)

    def abort(self) -> None:
        self._lose(None, with_reset=True)

    def _lose(self, error: Exception | None, *, with_reset: bool = False) -> None:
        if self._lost:
            return
        self._lost = self._is_closing = True
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        self._unsent.clear()
        self._unsent_bytes = 0
        if with_reset:
            self._file.reset()
        self._loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        self._loop.transports.pop(self, None)
        self._protocol.connection_lost(error)
        self._socket.close()
