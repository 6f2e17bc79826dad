# SPDX-License-Identifier: Apache-2.0
"""An asyncio event loop on the simulated machine, with transports that behave as uvloop's."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from greenlet import GreenletExit

from tests.simulation.files import File, SocketFile
from tests.simulation.machine import SECOND_NS, Machine, ProcessEnd
from tests.simulation.threads import thread_pool

_HIGH_WATER_BYTES = 64 << 10
_LOW_WATER_BYTES = 16  # of uvloop, where asyncio has a quarter of the other
_READ_BYTES = 256_000
_HINT_BYTES = 64 << 10  # what uvloop tells `get_buffer`
_MOST_READS = 32  # of a connection that fills its buffer, in one iteration
_MILLISECOND_NS = 1_000_000
_MOST_ITERATIONS = 10_000  # without waiting for anything
_ITERATION_NS = 2000  # what an iteration takes
_FREE_ITERATIONS = 32  # after each event: how many asyncio needs depends on the version of Python


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
    __slots__ = ("file", "is_stopped", "is_transport", "on_event", "reader", "writer")

    def __init__(self, file: File, *, is_transport: bool) -> None:
        self.file = file
        self.is_transport = is_transport
        self.is_stopped = False  # by an error
        self.reader: Handle | None = None
        self.writer: Handle | None = None
        self.on_event: Callable[[File], None]


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop of a simulated thread.

    As uvloop's: an iteration runs what was queued, then callbacks of descriptors, then timers. Its
    clock and its timers count milliseconds.
    """

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
        self._exception_handler: Callable[[SimulatedLoop, dict[str, Any]], object] | None = None
        self.transports: dict[SimulatedTransport, None] = {}
        self.unhandled: list[dict[str, Any]] = []  # what reached the exception handler

    # Time and calls

    def time(self) -> float:
        return self.machine.now_ns // _MILLISECOND_NS / 1000

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
        delay_ms = round(delay * 1000)
        if delay_ms <= 0:
            return self.call_soon(callback, *args, context=context)
        when_ns = (self.machine.now_ns // _MILLISECOND_NS + delay_ms) * _MILLISECOND_NS
        self._check_open()
        handle = Handle(callback, args, context, when_ns / SECOND_NS)
        heapq.heappush(self._timers, (when_ns, self.machine.next_number(), handle))
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        return self.call_later(when - self.time(), callback, *args, context=context)

    @property
    def timer_count(self) -> int:
        return sum(not handle.cancelled() for _, _, handle in self._timers)

    # Running

    def run_forever(self) -> None:
        self._check_open()
        if self._is_running:
            raise RuntimeError("this event loop is already running.")
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

        def on_done(_: Any) -> None:
            self.stop()

        task.add_done_callback(on_done)
        try:
            self.run_forever()
        finally:
            task.remove_done_callback(on_done)
        if not task.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return task.result()

    def stop(self) -> None:
        self.call_soon(self._stop)
        self._wake()

    def _stop(self) -> None:
        self._is_stopping = True

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        if self._is_running:
            raise RuntimeError("Cannot close a running event loop")
        if self._is_closed:
            return
        for number in list(self._signals):
            self.remove_signal_handler(number)
        self._is_closed = True
        for descriptor in list(self._watches):
            self._forget(descriptor)
        self._ready.clear()
        self._timers.clear()
        self.call_soon = self._refuse  # type: ignore[method-assign]  costs less than a check

    def _refuse(self, *_: object, **__: object) -> Any:
        raise RuntimeError("Event loop is closed")

    def _check_open(self) -> None:
        if self._is_closed:
            self._refuse()

    def _run_once(self) -> None:
        machine = self.machine
        ready, timers = self._ready, self._timers
        self._count_iteration()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._callback is not None:
                self._run(handle)
            del handle  # or what it refers to would live as long as the loop waits
        found = self._poll() if self._hot else ()
        if found:
            machine.now_ns += _ITERATION_NS
        elif not ready and not self._is_stopping:
            found = self._wait()
            machine.now_ns += _ITERATION_NS
        # Not for each call: how many asyncio makes depends on the version of Python.
        machine.now_ns += machine.callback_ns * len(found)
        for watch, is_readable, is_writable in found:
            if is_readable and watch.reader is not None:
                self._run(watch.reader)
            if is_writable and watch.writer is not None:
                self._run(watch.writer)
        while timers and timers[0][0] <= machine.now_ns:
            handle = heapq.heappop(timers)[2]
            if handle._callback is not None:
                self._run(handle)

    def _count_iteration(self) -> None:
        """Let time pass in a loop that does not wait, and end the run of one that never does."""
        machine = self.machine
        self._iterations += 1
        if self._iterations > _FREE_ITERATIONS:
            machine.now_ns += _ITERATION_NS
        if self._iterations > _MOST_ITERATIONS:
            calls = [handle._callback for handle in self._ready]
            machine.give_up(f"an event loop of {machine.process.name} spins: it calls {calls}")

    def _wait(self) -> Sequence[tuple[_Watch, bool, bool]]:
        machine, ready, timers = self.machine, self._ready, self._timers
        while True:
            while timers and timers[0][2]._callback is None:
                heapq.heappop(timers)
            if timers and timers[0][0] <= machine.now_ns:
                return ()
            self._iterations = 0
            # libuv waits for whole milliseconds from now on. A timer may be early by less than one,
            # if something else ends the wait.
            late_ns = machine.now_ns % _MILLISECOND_NS
            machine.wait(timers[0][0] + late_ns if timers else None)
            found = self._poll() if self._hot else ()
            if found or ready:
                return found

    def _run(self, handle: Handle) -> None:
        callback = handle._callback
        assert callback is not None
        try:
            handle._context.run(callback, *handle._arguments)
        except (SystemExit, KeyboardInterrupt, GreenletExit, ProcessEnd):
            raise
        except BaseException as error:  # noqa: BLE001  as every event loop does
            self.call_exception_handler(
                {"message": f"Exception in callback {callback!r}", "exception": error}
            )

    def _poll(self) -> list[tuple[_Watch, bool, bool]]:
        found = []
        for descriptor in list(self._hot):
            watch = self._watches[descriptor]
            file = watch.file
            is_readable = watch.reader is not None and file.is_readable
            is_writable = watch.writer is not None and file.is_writable
            if file.is_reset and not watch.is_transport:
                # libuv stops to watch a descriptor with an error, after it has told everybody.
                watch.is_stopped = True
                found.append((watch, True, True))
                del self._hot[descriptor]
            elif is_readable or is_writable:
                found.append((watch, is_readable, is_writable))
            else:
                del self._hot[descriptor]
        return found

    def _wake(self) -> None:
        if self._thread is not None:
            self.machine.wake(self._thread)

    # Descriptors

    def _watch(self, descriptor: int, *, is_transport: bool = False) -> _Watch:
        # A descriptor that was closed before it was removed stays that of its old file, also if the
        # number is used again: libuv does not know of it, and the new file is not watched.
        watch = self._watches.get(descriptor)
        if watch is None:
            self._check_open()
            file = self.machine.file_of(descriptor)
            self._watches[descriptor] = watch = _Watch(file, is_transport=is_transport)

            def on_event(_: File) -> None:
                if not watch.is_stopped:
                    self._hot[descriptor] = None
                    self._wake()

            watch.on_event = on_event
            file.watchers.append(on_event)
        elif watch.is_stopped:
            raise RuntimeError("unable to perform operation on a handle; the handler is closed")
        self._hot[descriptor] = None
        return watch

    def _forget(self, descriptor: int) -> None:
        watch = self._watches.pop(descriptor)
        watch.reader = watch.writer = None
        self._hot.pop(descriptor, None)
        if watch.on_event in watch.file.watchers:
            watch.file.watchers.remove(watch.on_event)
        del watch.on_event  # which refers to it: nothing is left for the collector

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._watch(_number(fd)).reader = Handle(callback, args, None)

    def add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._watch(_number(fd)).writer = Handle(callback, args, None)

    def remove_reader(self, fd: Any) -> None:  # type: ignore[override]  uvloop does not tell
        watch = self._watches.get(descriptor := _number(fd))
        if watch is not None and watch.reader is not None:
            watch.reader = None
            if watch.writer is None:
                self._forget(descriptor)

    def remove_writer(self, fd: Any) -> None:  # type: ignore[override]
        watch = self._watches.get(descriptor := _number(fd))
        if watch is not None and watch.writer is not None:
            watch.writer = None
            if watch.reader is None:
                self._forget(descriptor)

    @property
    def watch_count(self) -> int:
        return len(self._watches)

    # Futures, tasks, threads, signals

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> Any:
        if context is None:
            return asyncio.Task(coro, loop=self, name=name)
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        self._check_open()
        if executor is None:
            if self._executor is None:
                self._executor = thread_pool(self.machine)
            executor = self._executor
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)

    def set_default_executor(self, executor: Any) -> None:
        self._executor = executor

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            await self.run_in_executor(thread_pool(self.machine), executor.shutdown)

    async def shutdown_asyncgens(self) -> None:
        """Asynchronous generators of the project are closed by those that made them."""

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        handle = Handle(callback, args, None)
        self._signals[int(sig)] = handle

        def on_signal(_number: int, _frame: Any) -> None:
            self._ready.append(handle)
            self._wake()

        self.machine.process.signal_handlers[int(sig)] = on_signal

    def remove_signal_handler(self, sig: int) -> bool:
        if self._signals.pop(int(sig), None) is None:
            return False
        current = self.machine.current
        if current is not None:  # or its process has ended
            current.process.signal_handlers.pop(int(sig), None)
        return True

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
        if self._exception_handler is not None:
            self._exception_handler(self, context)
            return
        self.machine.unhandled.append(context)
        self.unhandled.append(context)

    async def connect_accepted_socket(
        self, protocol_factory: Callable[[], Any], sock: Any, *, ssl: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        assert ssl is None, "the simulation has no TLS"
        protocol = protocol_factory()
        waiter = self.create_future()
        transport = SimulatedTransport(self, sock, protocol, waiter)
        try:
            await waiter
        except BaseException:
            transport.close_silently()
            raise
        return transport, protocol


def _number(descriptor: Any) -> int:
    return descriptor if isinstance(descriptor, int) else descriptor.fileno()


class SimulatedTransport(asyncio.Transport):
    """The server's end of a client's connection, as uvloop's transport of a TCP socket."""

    def __init__(
        self, loop: SimulatedLoop, sock: Any, protocol: Any, waiter: asyncio.Future[None]
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._descriptor = sock.fileno()
        self._file: SocketFile = sock.file
        self._addresses = {"peername": sock.getpeername(), "sockname": sock.getsockname()}
        self._protocol: Any = None
        self._waiter = waiter  # of `connection_made`
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._high_bytes, self._low_bytes = _HIGH_WATER_BYTES, _LOW_WATER_BYTES
        self._is_closing = False
        self._is_paused = False  # the protocol was told to pause
        self._is_reading = False
        self._saw_end = False
        self._sends_end = False
        self._is_lost = False  # what is sent is dropped, and the protocol will be told
        self._is_closed = False
        loop.transports[self] = None
        self.set_protocol(protocol)
        loop.call_soon(self._start)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol
        self._is_buffered = hasattr(protocol, "get_buffer") and not isinstance(
            protocol, asyncio.Protocol
        )

    def get_protocol(self) -> Any:
        return self._protocol

    def _start(self) -> None:
        try:
            self._protocol.connection_made(self)
        finally:
            if not self._waiter.done():
                self._waiter.set_result(None)
        self.resume_reading()  # even if it was paused meanwhile

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return default if self._is_closed else self._socket
        return self._addresses.get(name, default)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"unable to perform operation on {self!r}; the handler is closed")

    # Reading

    def pause_reading(self) -> None:
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        if not self._is_reading and not self._is_closing and not self._saw_end:
            self._is_reading = True
            watch = self._loop._watch(self._descriptor, is_transport=True)
            watch.reader = Handle(self._on_readable, (), None)

    def is_reading(self) -> bool:
        return self._is_reading

    def _on_readable(self) -> None:
        try:
            for _ in range(_MOST_READS):
                if not self._read() or not self._is_reading:
                    break
        except OSError as error:
            self._lose(error)
        except Exception as error:  # noqa: BLE001  every error of a protocol ends the connection
            self._loop.call_exception_handler(
                {"message": "Fatal error on transport TCPTransport", "exception": error}
            )
            self._lose(error)

    def _read(self) -> bool:
        """Read once; returns whether there may be more."""
        protocol = self._protocol
        if self._is_buffered:
            buffer = memoryview(protocol.get_buffer(_HINT_BYTES))
            size = len(buffer)
            if not size:
                raise RuntimeError("unhandled error (or an empty buffer) in get_buffer()")
        else:
            size = _READ_BYTES
        try:
            data = self._socket.recv(size)
        except BlockingIOError:
            return False
        if not data:
            self._saw_end = True
            self._stop_reading()
            if not protocol.eof_received():
                self.close()
            return False
        if self._is_buffered:
            buffer[: len(data)] = data
            protocol.buffer_updated(len(data))
        else:
            protocol.data_received(data)
        return len(data) == size

    # Writing

    def write(self, data: Any) -> None:
        self._check_open()
        if self._sends_end:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._is_lost:
            return
        if not self._unsent:
            data = self._send(data)
            if not len(data) or self._is_lost:
                return
        kept = bytes(data)
        self._unsent.append(kept)
        self._unsent_bytes += len(kept)
        watch = self._loop._watch(self._descriptor, is_transport=True)
        if watch.writer is None:
            watch.writer = Handle(self._on_writable, (), None)
        if self._unsent_bytes > self._high_bytes and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        if self._sends_end:
            raise RuntimeError("Cannot call writelines() after write_eof()")
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
            if self._is_lost:
                return
            self._unsent_bytes -= len(first) - len(rest)
            if len(rest):
                self._unsent[0] = bytes(rest)
                break
            self._unsent.popleft()
        if not self._unsent:
            self._loop.remove_writer(self._descriptor)
        if self._is_paused and self._unsent_bytes <= self._low_bytes:
            self._is_paused = False
            self._protocol.resume_writing()
        if not self._unsent and not self._is_lost:
            if self._is_closing:
                self._lose(None)
            elif self._sends_end:
                self._file.shut_down()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        self._high_bytes, self._low_bytes = high, high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._check_open()
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
        self._stop_reading()
        if not self._unsent:
            self._lose(None)

    def abort(self) -> None:
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._stop_reading()
        self._loop.remove_writer(self._descriptor)
        self._unsent.clear()
        self._unsent_bytes = 0
        self._loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        self._loop.transports.pop(self, None)
        if self._is_closed:
            return
        try:
            self._protocol.connection_lost(error)
        finally:
            self._is_closed = True
            self._socket.close()

    def close_silently(self) -> None:
        """Close it without a word to the protocol, as uvloop does if its opening is cancelled."""
        self._is_lost = self._is_closing = self._is_closed = True
        self._stop_reading()
        self._loop.remove_writer(self._descriptor)
        self._unsent.clear()
        self._unsent_bytes = 0
        self._loop.transports.pop(self, None)
        self._socket.close()

    def __repr__(self) -> str:
        return f"<TCPTransport closed={self._is_closed} reading={self._is_reading}>"
