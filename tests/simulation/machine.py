# SPDX-License-Identifier: Apache-2.0
"""A simulated machine: virtual time, threads that are greenlets, and processes that can be killed.

Everything happens in one thread of the real machine, in an order that a seed decides. Time jumps
to the next event. A simulated thread runs until it waits for something; nothing else runs
meanwhile, so that a run with the same seed repeats the same order.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import io
import logging
import os
import random
import signal
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

SECOND_NS = 1_000_000_000
FIRST_PID = 5_000_000  # above the highest of a real Linux, so that /proc has none of them
# Descriptors of a process begin at its number times this, so that each belongs to one process: an
# object of a process may be freed, and close its descriptor, while another process runs.
DESCRIPTORS_PER_PROCESS = 1 << 20

_LONGEST_DELAY_NS = 50_000_000  # until a thread that could run has a processor

_IGNORED_SIGNALS = (signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH)  # unless they are handled

_get_running_loop = asyncio_events._get_running_loop
_set_running_loop = asyncio_events._set_running_loop


class Event:
    """A call at a time; it can be cancelled before."""

    __slots__ = ("arguments", "callback", "when_ns")

    def __init__(self, when_ns: int, callback: Callable[..., object], arguments: tuple) -> None:
        self.when_ns = when_ns
        self.callback: Callable[..., object] | None = callback
        self.arguments = arguments

    def cancel(self) -> None:
        self.callback = None
        self.arguments = ()


class SimulatedThread(greenlet):
    def __init__(
        self, process: SimulatedProcess, target: Callable[[], object], name: str = ""
    ) -> None:
        super().__init__(self._main, process.machine.hub)
        self.process = process
        self.name = name or f"thread {len(process.threads)}"
        self.number = process.machine.next_number()
        self.target = target
        self.values: dict[int, dict[str, Any]] = {}  # of each `threading.local`
        self.is_over = False
        self.is_waiting = False
        self.is_woken = False
        self.running_loop: Any = None
        self.joiners: list[SimulatedThread] = []
        self._timer: Event | None = None

    def _main(self) -> None:
        process = self.process
        status = 0
        try:
            self.target()
        except ProcessEnd as end:
            process.end(end.status)
        except SystemExit as exit_:  # ends the thread only, unless it is the main one
            status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        except BaseException as error:  # noqa: BLE001  every error of a thread is reported
            status = 1
            process.machine.on_thread_error(self, error)
        self.is_over = True
        process.threads.pop(self, None)
        for joiner in self.joiners:
            process.machine.wake(joiner)
        if self is process.main_thread and not process.is_over:
            process.end(status)


class ProcessEnd(BaseException):
    """Raised by `os._exit` and `sys.exit` of a simulated process, if it can be caught nowhere."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class StuckError(Exception):
    """A thread runs and runs, so that nothing else can happen."""


class SimulatedProcess:
    """A process: threads, descriptors, children. `end` and `kill` end it between two steps."""

    def __init__(self, machine: Machine, name: str, parent: SimulatedProcess | None) -> None:
        self.machine = machine
        self.name = name
        self.parent = parent
        self.index = len(machine.processes)
        self.pid = FIRST_PID + self.index
        self.random = machine.random_of(f"process {self.index}")
        self.threads: dict[SimulatedThread, None] = {}
        self.main_thread: SimulatedThread | None = None
        self.children: list[SimulatedProcess] = []
        self.environment: dict[str, str] = {} if parent is None else dict(parent.environment)
        self.descriptor_limit = 4096 if parent is None else parent.descriptor_limit
        self.files: dict[int, Any] = {}
        self._free: list[int] = []  # numbers that were closed
        self._next = 3
        self.base = (self.index + 1) * DESCRIPTORS_PER_PROCESS
        self.status: int | None = None  # as that of `subprocess.Popen.returncode`
        self.is_reaped = False
        self.is_stopped = False
        self.dies_with_parent = False
        self.slowness = 1.0
        self.signal_handlers: dict[int, Any] = {}
        self.wakeup_descriptor = -1
        self.globals: dict[str, Any] = {}  # values of module variables that are its own
        self.exit_watchers: list[Callable[[], None]] = []
        self._held: list[SimulatedThread] = []  # would run, but the process is stopped
        self._pending_signals: list[int] = []  # came since it is stopped

    @property
    def is_over(self) -> bool:
        return self.status is not None

    # Descriptors

    def open(self, file: Any) -> int:
        """Give a file the lowest free descriptor.

        Raises:
            OSError: None is left (EMFILE).
        """
        number = self._free[0] if self._free else self._next
        if number >= self.descriptor_limit:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if self._free:
            heapq.heappop(self._free)
        else:
            self._next += 1
        file.references += 1
        descriptor = self.base + number
        self.files[descriptor] = file
        return descriptor

    def close(self, descriptor: int) -> None:
        file = self.files.pop(descriptor, None)
        if file is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        number = descriptor - self.base
        heapq.heappush(self._free, number)
        file.release()

    # Threads

    def start_thread(self, target: Callable[[], object], name: str = "") -> SimulatedThread:
        thread = SimulatedThread(self, target, name)
        self.threads[thread] = None
        if self.main_thread is None:
            self.main_thread = thread
        self.machine.schedule(thread)
        return thread

    def hold(self, thread: SimulatedThread) -> None:
        """Keep a thread that would run until the process is continued."""
        self._held.append(thread)

    # Signals and the end

    def stop(self) -> None:
        self.is_stopped = True

    def resume(self) -> None:
        if self.is_stopped:
            self.is_stopped = False
            held, self._held = self._held, []
            for thread in held:
                self.machine.schedule(thread)
            pending, self._pending_signals = self._pending_signals, []
            for number in pending:
                self.signal(number)

    def kill(self) -> None:
        self.end(-int(signal.SIGKILL))

    def end(self, status: int) -> None:
        """End it; if one of its threads calls this, the call does not return."""
        machine = self.machine
        if self.is_over:
            return
        machine.note("process", self.name, "ended", status)
        self.status = status
        machine.dead_threads.extend(self.threads)
        self.threads.clear()
        self._held.clear()
        for descriptor in list(self.files):
            self.close(descriptor)
        for child in self.children:
            if child.dies_with_parent:
                child.kill()
        if self.parent is not None:
            self.parent.on_child_ended()
        for watcher in list(self.exit_watchers):
            watcher()
        current = machine.current
        if current is not None and current.process is self and getcurrent() is current:
            machine.current = None
            _set_running_loop(None)
            machine.hub.switch()  # never back

    def on_child_ended(self) -> None:
        if self.has_handler(signal.SIGCHLD):
            self.signal(signal.SIGCHLD)

    def has_handler(self, number: int) -> bool:
        return callable(self.signal_handlers.get(number))

    def signal(self, number: int) -> None:
        """Do what a signal does to it; a handler runs in a thread, as soon as it can."""
        if self.is_over or number == 0:
            return
        if number == signal.SIGKILL:
            self.kill()
        elif number == signal.SIGSTOP:
            self.stop()
        elif number == signal.SIGCONT:
            self.resume()
        elif self.is_stopped:
            if number not in self._pending_signals:
                self._pending_signals.append(number)
        else:
            self._handle(number)

    def _handle(self, number: int) -> None:
        handler = self.signal_handlers.get(number, signal.SIG_DFL)
        if callable(handler):
            if self.wakeup_descriptor in self.files:
                self.files[self.wakeup_descriptor].send_now(bytes([number]))
            current = self.machine.current
            if current is not None and current.process is self:
                handler(number, None)
            else:
                self.start_thread(lambda: handler(number, None), "signal handler")
        elif handler == signal.SIG_DFL and number not in _IGNORED_SIGNALS:
            self.end(-int(number))

    def __repr__(self) -> str:
        return f"<SimulatedProcess {self.name} {self.status}>"


class Machine:
    """Time, the events to come, and the processes of a simulation.

    Args:
        seed: decides delays and orders; parts have sequences of their own, so that one more
            decision of one part does not change those of the others.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_ns = 1000 * SECOND_NS
        self.wall_offset_ns = 1_700_000_000 * SECOND_NS
        self.hub = getcurrent()
        self.current: SimulatedThread | None = None
        self.processes: list[SimulatedProcess] = []
        self.dead_threads: list[SimulatedThread] = []
        self.errors: list[tuple[SimulatedThread, BaseException]] = []
        self.unhandled: list[dict[str, Any]] = []  # errors that event loops reported
        self.story: deque[tuple[int, tuple]] = deque(maxlen=100_000)
        self.event_count = 0
        self.failure = ""  # why the run cannot go on
        self.shared_memory_bytes = 0
        self.shared_memory_limit = 1 << 40
        self.disk_is_full = False
        self.thread_limit: int | None = None  # of a process
        self.process_limit: int | None = None
        self.listeners: dict[Any, Any] = {}  # by port or path
        self.named_memory: dict[str, Any] = {}  # of clients, by its name in /dev/shm
        self.callback_ns = 0  # what an event loop needs for each descriptor that is ready
        self.pause_share = 0.0  # of system calls, after which the caller loses its processor
        self._sockets = 0
        self.process_variables: list[tuple[Any, str, Any]] = []  # module, name, initial value
        self._globals_of: SimulatedProcess | None = None
        self._events: list[tuple[int, int, Event]] = []
        self._numbers = 0

    def random_of(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def next_number(self) -> int:
        """Returns a number that no other object has."""
        self._numbers += 1
        return self._numbers

    def next_socket(self) -> int:
        self._sockets += 1
        return self._sockets

    @property
    def live_count(self) -> int:
        return sum(not each.is_over for each in self.processes)

    def pause_between_calls(self) -> None:
        """Let others run before a system call, sometimes: a process may be killed there."""
        if self.pause_share and self.current is not None:
            random = self.current.process.random
            if random.random() < self.pause_share:
                self.sleep(int(1 + random.random() * 50_000))

    def note(self, *words: object) -> None:
        self.story.append((self.now_ns, words))

    # Events

    def call_at(self, when_ns: int, callback: Callable[..., object], *arguments: object) -> Event:
        event = Event(when_ns, callback, arguments)
        self._numbers += 1
        heapq.heappush(self._events, (when_ns, self._numbers, event))
        return event

    def call_later(
        self, delay_ns: int, callback: Callable[..., object], *arguments: object
    ) -> Event:
        when_ns = self.now_ns + delay_ns
        event = Event(when_ns, callback, arguments)  # as `call_at`, without a call
        self._numbers += 1
        heapq.heappush(self._events, (when_ns, self._numbers, event))
        return event

    def run(self, is_done: Callable[[], bool], end_ns: int) -> bool:
        """Run events until a condition holds, or the time is over; returns whether it holds."""
        events = self._events
        while not is_done():
            if not events or events[0][0] > end_ns:
                self.now_ns = max(self.now_ns, end_ns)
                return is_done()
            when_ns, _, event = heapq.heappop(events)
            callback = event.callback
            if callback is None:
                continue
            self.now_ns = max(self.now_ns, when_ns)
            self.event_count += 1
            callback(*event.arguments)
            if self.failure:
                raise StuckError(self.failure)
        return True

    def give_up(self, reason: str) -> None:
        """End the run, whose current thread does not go on: it would not wait any more."""
        self.failure = reason
        self.current = None
        _set_running_loop(None)
        self.hub.switch()  # back only when the machine is closed

    def run_for(self, seconds: float) -> None:
        self.run(lambda: False, self.now_ns + round(seconds * SECOND_NS))

    # Processes and threads

    def start_process(
        self,
        name: str,
        main: Callable[[], object],
        parent: SimulatedProcess | None = None,
        delay_ns: int = 0,
    ) -> SimulatedProcess:
        process = SimulatedProcess(self, name, parent)
        self.processes.append(process)
        if parent is not None:
            parent.children.append(process)
        self.note("process", name, "started")
        if delay_ns:
            self.call_later(delay_ns, self._start_main, process, main)
        else:
            self._start_main(process, main)
        return process

    def _start_main(self, process: SimulatedProcess, main: Callable[[], object]) -> None:
        if not process.is_over:
            process.start_thread(main, "main")

    def process_of(self, descriptor: int) -> SimulatedProcess:
        index = descriptor // DESCRIPTORS_PER_PROCESS - 1
        if not 0 <= index < len(self.processes):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self.processes[index]

    def file_of(self, descriptor: int) -> Any:
        file = self.process_of(descriptor).files.get(descriptor)
        if file is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file

    @property
    def process(self) -> SimulatedProcess:
        assert self.current is not None, "no simulated process runs"
        return self.current.process

    def schedule(self, thread: SimulatedThread) -> None:
        process = thread.process
        delay_ns = int(2000 + process.random.random() * 18_000 * process.slowness)
        self.call_later(min(delay_ns, _LONGEST_DELAY_NS), self._resume, thread)

    def wait(self, deadline_ns: int | None = None) -> bool:
        """Suspend the current thread until `wake`, or the deadline; returns whether it was woken.

        It may be woken for nothing: whoever waits looks again.
        """
        thread = self.current
        assert thread is not None, "only a simulated thread can wait"
        thread.is_waiting = True
        thread.is_woken = False
        if deadline_ns is not None:
            thread._timer = self.call_at(deadline_ns, self._on_deadline, thread)
        thread.running_loop = _get_running_loop()
        _set_running_loop(None)
        self.current = None
        self.hub.switch()
        self.current = thread
        _set_running_loop(thread.running_loop)
        if thread._timer is not None:
            thread._timer.cancel()
            thread._timer = None
        return thread.is_woken

    def wake(self, thread: SimulatedThread) -> None:
        if thread.is_waiting and not thread.is_woken:
            thread.is_woken = True
            self.schedule(thread)

    def sleep(self, delay_ns: int) -> None:
        deadline_ns = self.now_ns + delay_ns
        while self.now_ns < deadline_ns:
            self.wait(deadline_ns)

    def _on_deadline(self, thread: SimulatedThread) -> None:
        if thread.is_waiting and not thread.is_woken:
            self._resume(thread)

    def _resume(self, thread: SimulatedThread) -> None:
        process = thread.process
        if process.is_over or thread.is_over:
            return
        if process.is_stopped:
            process.hold(thread)
            return
        thread.is_waiting = False
        self._use_globals(process)
        self.current = thread
        thread.switch()
        self.current = None

    def _use_globals(self, process: SimulatedProcess) -> None:
        """Give the module variables that belong to a process the values of that process."""
        before = self._globals_of
        if before is process:
            return
        self._globals_of = process
        for module, name, initial in self.process_variables:
            key = f"{module.__name__}.{name}"
            if before is not None:
                before.globals[key] = getattr(module, name)
            setattr(module, name, process.globals.get(key, initial))

    def on_thread_error(self, thread: SimulatedThread, error: BaseException) -> None:
        """Note an exception that ended a thread."""
        self.errors.append((thread, error))
        self.note("thread", thread.process.name, thread.name, "raised", repr(error))

    def close(self) -> None:
        for process in self.processes:
            if not process.is_over:
                self.current = None
                process.kill()
        dead, self.dead_threads = self.dead_threads, []
        logging.disable()
        with contextlib.redirect_stderr(io.StringIO()):
            for thread in dead:
                thread.is_over = True
                if not thread.dead:
                    with contextlib.suppress(BaseException):  # it is dead, whatever it says
                        thread.throw(ProcessEnd(1))
        logging.disable(logging.NOTSET)
        self.errors.clear()
        self._events.clear()
