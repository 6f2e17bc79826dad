# SPDX-License-Identifier: Apache-2.0
"""The modules that code uses of the system, as the simulated machine has them.

`os`, `socket`, `select`, `time`, `threading`, `signal`, `subprocess` and some more. Each has what
the project calls; other names are those of the real module. `tests/simulation/test_system.py` runs
the same tests on these and on the real ones.
"""

from __future__ import annotations

import array
import contextvars
import ctypes
import errno
import fcntl as real_fcntl
import functools
import mmap as real_mmap
import os as real_os
import pathlib
import queue as real_queue
import resource as real_resource
import secrets as real_secrets
import select as real_select
import signal as real_signal
import socket as real_socket
import stat
import struct
import subprocess as real_subprocess
import termios
import threading as real_threading
import time as real_time
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures as real_futures
from typing import Any

from pytriton.serving.server.shared_memory import guarded_copy
from tests.simulation.files import (
    STREAM_BYTES,
    File,
    ListenerFile,
    MemoryFile,
    NamedMemory,
    PacketFile,
    ProcessFile,
    SocketFile,
    TcpFile,
    connect,
    open_in,
    system_error,
)
from tests.simulation.machine import (
    DESCRIPTORS_PER_PROCESS,
    SECOND_NS,
    Machine,
    ProcessEnd,
    SimulatedProcess,
    SimulatedThread,
)

_SYSTEM_CALL_NS = 1000  # what one takes
_SPAWN_NS = 20_000_000
_SHARED_MEMORY = "/dev/shm/"
_COPIED_BYTES = 64 << 10  # of mapped memory, between which other threads run
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_F_SEAL_SEAL, _MFD_ALLOW_SEALING = 1, 2
_CONTROL_HEAD_BYTES = real_socket.CMSG_LEN(0)
_TRUNCATED, _CONTROL_TRUNCATED = int(real_socket.MSG_TRUNC), int(real_socket.MSG_CTRUNC)
_MOST_FILES = 253  # of one message
_LEAST_BUFFER_BYTES = 4608
_POOL_THREADS = 6  # of a pool that was not told; four more than processors
_POLL_ALL = real_select.POLLIN | real_select.POLLPRI | real_select.POLLOUT
_SCM = (real_socket.SOL_SOCKET, real_socket.SCM_RIGHTS)


class StandIn(types.ModuleType):
    """A module in place of another; names that it does not have are those of the other."""

    def __init__(self, real: types.ModuleType, machine: Machine) -> None:
        super().__init__(real.__name__)
        self.__dict__["real"] = real
        self.__dict__["machine"] = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real"], name)


def _deadline(machine: Machine, timeout_s: float | None) -> int | None:
    return None if timeout_s is None else machine.now_ns + max(0, round(timeout_s * SECOND_NS))


class Time(StandIn):
    """Reads the clock of the machine; the wall clock may jump."""

    def monotonic_ns(self) -> int:
        return self.machine.now_ns

    perf_counter_ns = process_time_ns = thread_time_ns = monotonic_ns

    def monotonic(self) -> float:
        return self.machine.now_ns / SECOND_NS

    perf_counter = process_time = thread_time = monotonic

    def time_ns(self) -> int:
        return self.machine.now_ns + self.machine.wall_offset_ns

    def time(self) -> float:
        return self.time_ns() / SECOND_NS

    def sleep(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self.machine.sleep(max(_SYSTEM_CALL_NS, round(seconds * SECOND_NS)))


# Threads


class Lock:
    """As `threading.Lock`; the machine has no other thread that could run meanwhile."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._is_locked = False
        self._waiters: deque[SimulatedThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._is_locked:
            self._is_locked = True
            return True
        if not blocking:
            return False
        machine = self._machine
        deadline_ns = _deadline(machine, timeout if timeout >= 0 else None)
        thread = machine.current
        assert thread is not None
        while self._is_locked:
            if deadline_ns is not None and machine.now_ns >= deadline_ns:
                return False
            self._waiters.append(thread)
            machine.wait(deadline_ns)
            if thread in self._waiters:
                self._waiters.remove(thread)
        self._is_locked = True
        return True

    def release(self) -> None:
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        while self._waiters:
            thread = self._waiters.popleft()
            if not thread.process.is_over:
                self._machine.wake(thread)
                break

    def locked(self) -> bool:
        return self._is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class ReentrantLock:
    """As `threading.RLock`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lock = Lock(machine)
        self._owner: SimulatedThread | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._owner is not None and self._owner is self._machine.current:
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._count = self._machine.current, 1
        return True

    def release(self) -> None:
        if not self.is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def is_owned(self) -> bool:
        """Whether the current thread has it."""
        return self._count > 0 and self._owner is self._machine.current

    def release_all(self) -> int:
        """Release it however often it was acquired; returns how often that was."""
        count, self._count, self._owner = self._count, 0, None
        self._lock.release()
        return count

    def acquire_again(self, count: int) -> None:
        """Acquire it as often as it was before `release_all`."""
        self._lock.acquire()
        self._owner, self._count = self._machine.current, count

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class Waiters:
    """Threads that wait to be told something, in the order in which they came."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._waiters: deque[list[Any]] = deque()

    def add(self) -> list[Any]:
        """Add the current thread; returns what `wait` needs."""
        waiter = [self._machine.current, False]
        self._waiters.append(waiter)
        return waiter

    def wait(self, waiter: list[Any], deadline_ns: int | None) -> bool:
        """Let the current thread wait; returns False at the deadline."""
        machine = self._machine
        while not waiter[1] and (deadline_ns is None or machine.now_ns < deadline_ns):
            machine.wait(deadline_ns)
        if not waiter[1]:
            self._waiters.remove(waiter)
        return bool(waiter[1])

    def notify(self, count: int | None = None) -> None:
        """Tell the first ones, or all."""
        waiters = self._waiters
        for _ in range(len(waiters) if count is None else min(count, len(waiters))):
            waiter = waiters.popleft()
            waiter[1] = True
            self._machine.wake(waiter[0])


class Condition:
    """As `threading.Condition`."""

    def __init__(self, machine: Machine, lock: Any = None) -> None:
        self._machine = machine
        self._lock = lock or ReentrantLock(machine)
        self.acquire = self._lock.acquire
        self.release = self._lock.release
        self._waiters = Waiters(machine)

    def _check_owned(self, verb: str) -> None:
        lock = self._lock
        if not (lock.is_owned() if isinstance(lock, ReentrantLock) else lock.locked()):
            raise RuntimeError(f"cannot {verb} on un-acquired lock")

    def wait(self, timeout: float | None = None) -> bool:
        self._check_owned("wait")
        lock = self._lock
        deadline_ns = _deadline(self._machine, timeout)
        waiter = self._waiters.add()
        if isinstance(lock, ReentrantLock):
            count = lock.release_all()
            was_told = self._waiters.wait(waiter, deadline_ns)
            lock.acquire_again(count)
        else:
            lock.release()
            was_told = self._waiters.wait(waiter, deadline_ns)
            lock.acquire()
        return was_told

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline_ns = _deadline(self._machine, timeout)
        while not (result := predicate()):
            left_s = None
            if deadline_ns is not None:
                left_s = (deadline_ns - self._machine.now_ns) / SECOND_NS
                if left_s <= 0:
                    break
            self.wait(left_s)
        return result

    def notify(self, n: int = 1) -> None:
        self._check_owned("notify")
        self._waiters.notify(n)

    def notify_all(self) -> None:
        self._check_owned("notify")
        self._waiters.notify()

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class ThreadEvent:
    """As `threading.Event`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._waiters = Waiters(machine)
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._waiters.notify()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._is_set:
            return True
        # As the real one: whoever waited when it was set has seen it, whatever came since.
        return self._waiters.wait(self._waiters.add(), _deadline(self._machine, timeout))


class Local:
    """As `threading.local`, for the threads of all processes."""

    def __init__(self, machine: Machine) -> None:
        object.__setattr__(self, "_machine", machine)

    def _values(self) -> dict[str, Any]:
        thread = object.__getattribute__(self, "_machine").current
        return {} if thread is None else thread.values.setdefault(id(self), {})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._values()[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self._values()[name]
        except KeyError:
            raise AttributeError(name) from None


def start_thread(machine: Machine, target: Callable[[], object], name: str = "") -> SimulatedThread:
    """Start a thread of the current process.

    Raises:
        RuntimeError: It has as many as it may have.
    """
    process = machine.process
    if machine.thread_limit is not None and len(process.threads) >= machine.thread_limit:
        raise RuntimeError("can't start new thread")
    return process.start_thread(target, name)


class Thread:
    """As `threading.Thread`."""

    machine: Machine  # of a subclass that belongs to a machine

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        del group
        self._target, self._args, self._kwargs = target, tuple(args), kwargs or {}
        self.name = name or f"Thread-{self.machine.next_number()}"
        self.daemon = bool(daemon)
        self._thread: SimulatedThread | None = None

    def start(self) -> None:
        if self._thread is not None:
            raise RuntimeError("threads can only be started once")
        self._thread = start_thread(self.machine, self.run, self.name)
        self._thread.values[0] = {"thread": self}

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    @property
    def ident(self) -> int | None:
        return None if self._thread is None else self._thread.number

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.is_over

    def join(self, timeout: float | None = None) -> None:
        thread, machine = self._thread, self.machine
        if thread is None:
            raise RuntimeError("cannot join thread before it is started")
        if thread is machine.current:
            raise RuntimeError("cannot join current thread")
        deadline_ns = _deadline(machine, timeout)
        assert machine.current is not None
        while not thread.is_over and (deadline_ns is None or machine.now_ns < deadline_ns):
            thread.joiners.append(machine.current)
            machine.wait(deadline_ns)


class Threading(StandIn):
    """Threads of simulated processes."""

    def __init__(self, real: types.ModuleType, machine: Machine) -> None:
        super().__init__(real, machine)
        self.Thread = type("Thread", (Thread,), {"machine": machine})
        self._main = self.Thread(name="MainThread")

    def Lock(self) -> Lock:  # noqa: N802  the name of the module
        return Lock(self.machine)

    def RLock(self) -> ReentrantLock:  # noqa: N802
        return ReentrantLock(self.machine)

    def Condition(self, lock: Any = None) -> Condition:  # noqa: N802
        return Condition(self.machine, lock)

    def Event(self) -> ThreadEvent:  # noqa: N802
        return ThreadEvent(self.machine)

    def local(self) -> Local:
        return Local(self.machine)

    def get_ident(self) -> int:
        thread = self.machine.current
        return 0 if thread is None else thread.number

    get_native_id = get_ident

    def current_thread(self) -> Any:
        thread = self.machine.current
        if thread is None or 0 not in thread.values:
            return self._main
        return thread.values[0]["thread"]

    def main_thread(self) -> Any:
        return self._main

    def active_count(self) -> int:
        return len(self.machine.process.threads)


class SimpleQueue:
    """As `queue.SimpleQueue`."""

    machine: Machine

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiters = Waiters(self.machine)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        del block, timeout  # it has no limit
        self._items.append(item)
        self._waiters.notify(1)

    def put_nowait(self, item: Any) -> None:
        self.put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block and timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        deadline_ns = _deadline(self.machine, timeout)
        waiters = self._waiters
        while not self._items:
            if not block or not waiters.wait(waiters.add(), deadline_ns):
                raise real_queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class Future(real_futures.Future):
    """A future whose `result` lets other simulated threads run."""

    machine: Machine

    def _wait(self, timeout: float | None) -> None:
        machine = self.machine
        if self.done():
            return
        deadline_ns = _deadline(machine, timeout)
        thread = machine.current
        self.add_done_callback(lambda _: machine.wake(thread))
        while not self.done():
            if deadline_ns is not None and machine.now_ns >= deadline_ns:
                raise real_futures.TimeoutError
            machine.wait(deadline_ns)

    def result(self, timeout: float | None = None) -> Any:
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(timeout)
        return super().exception(0)


class ThreadPool:
    """As `ThreadPoolExecutor`; each call has a thread, at most `max_workers` at a time."""

    machine: Machine
    future: type[Future]

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "") -> None:
        self._limit = max_workers or _POOL_THREADS
        self._name = thread_name_prefix
        self._waiting: deque[tuple[Future, Callable[[], Any]]] = deque()
        self._running = 0
        self._is_shut = False
        self._idle = Waiters(self.machine)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = self.future()
        self._waiting.append((future, lambda: function(*args, **kwargs)))
        if self._running < self._limit:
            start_thread(self.machine, self._run, f"{self._name}-{self._running}")
            self._running += 1
        return future

    def _run(self) -> None:
        while self._waiting:
            future, work = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(contextvars.copy_context().run(work))
                except ProcessEnd:
                    raise
                except BaseException as error:  # noqa: BLE001  the caller gets it
                    future.set_exception(error)
        self._running -= 1
        if not self._running:
            self._idle.notify()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut = True
        if cancel_futures:
            while self._waiting:
                self._waiting.popleft()[0].cancel()
        if wait:
            while self._running:
                self._idle.wait(self._idle.add(), None)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


# Descriptors


class Os(StandIn):
    """System calls on simulated descriptors and processes; others are real."""

    def __init__(self, real: types.ModuleType, machine: Machine) -> None:
        super().__init__(real, machine)
        self._random = machine.random_of("os.urandom")

    @property
    def environ(self) -> Any:
        current = self.machine.current
        return real_os.environ if current is None else current.process.environment

    def urandom(self, size: int) -> bytes:
        return bytes(int(self._random.random() * 256) for _ in range(size))

    def getpid(self) -> int:
        return self.machine.process.pid

    def getppid(self) -> int:
        parent = self.machine.process.parent
        return 1 if parent is None or parent.is_over else parent.pid

    def cpu_count(self) -> int:
        return 2

    def sched_getaffinity(self, pid: int) -> set[int]:
        return {0, 1}

    def close(self, descriptor: int) -> None:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            real_os.close(descriptor)
            return
        process = self.machine.process_of(descriptor)
        if not process.is_over:  # or one of its objects is freed, after all was closed
            process.close(descriptor)

    def closerange(self, low: int, high: int) -> None:
        process = self.machine.process
        for descriptor in [each for each in process.files if low <= each < high]:
            process.close(descriptor)

    def open(self, path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        if (
            flags & real_os.O_CREAT
            and self.machine.disk_is_full
            and not pathlib.Path(path).exists()
        ):
            raise system_error(errno.ENOSPC)
        if str(path).startswith(_SHARED_MEMORY) and not flags & real_os.O_CREAT:
            memory = self.machine.named_memory.get(str(path).removeprefix(_SHARED_MEMORY))
            if memory is None:
                raise system_error(errno.ENOENT)
            return self.machine.process.open(memory)
        return real_os.open(path, flags, mode, **options)

    def _named_memory(self, descriptor: int) -> NamedMemory:
        self.machine.pause_between_calls()
        file = self.machine.file_of(descriptor)
        if not isinstance(file, NamedMemory):
            raise system_error(errno.ESPIPE)
        return file

    def preadv(self, descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_os.preadv(descriptor, parts, offset)
        file = self._named_memory(descriptor)
        done = 0
        for part in parts:
            data = file.read(offset + done, len(part))
            part[: len(data)] = data
            done += len(data)
        return done

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_os.pwrite(descriptor, data, offset)
        self._named_memory(descriptor).write(offset, data)
        return len(data)

    def dup(self, descriptor: int) -> int:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_os.dup(descriptor)
        process = self.machine.process_of(descriptor)
        return process.open(self.machine.file_of(descriptor))

    def set_inheritable(self, descriptor: int, inheritable: bool) -> None:
        self.machine.file_of(descriptor)

    def set_blocking(self, descriptor: int, blocking: bool) -> None:
        self.machine.file_of(descriptor).is_blocking = blocking

    def get_blocking(self, descriptor: int) -> bool:
        return bool(self.machine.file_of(descriptor).is_blocking)

    def memfd_create(self, name: str, flags: int = 1) -> int:
        seals = 0 if flags & _MFD_ALLOW_SEALING else _F_SEAL_SEAL
        return self.machine.process.open(MemoryFile(self.machine, seals))

    def ftruncate(self, descriptor: int, size: int) -> None:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            real_os.ftruncate(descriptor, size)
            return
        self.machine.file_of(descriptor).resize(size)

    def fstat(self, descriptor: int) -> Any:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_os.fstat(descriptor)
        file = self.machine.file_of(descriptor)
        is_memory = isinstance(file, MemoryFile)
        return types.SimpleNamespace(
            st_size=len(file.data) if is_memory else 0,
            st_ino=id(file),
            st_dev=0,
            st_mode=(stat.S_IFREG if is_memory else stat.S_IFSOCK) | 0o777,
        )

    def read(self, descriptor: int, size: int) -> bytes:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_os.read(descriptor, size)
        return BorrowedSocket(self.machine, descriptor).recv(size)

    def write(self, descriptor: int, data: Any) -> int:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            if self.machine.disk_is_full:
                raise system_error(errno.ENOSPC)
            return real_os.write(descriptor, data)
        return BorrowedSocket(self.machine, descriptor).send(data)

    def readv(self, descriptor: int, parts: Sequence[memoryview]) -> int:
        return BorrowedSocket(self.machine, descriptor).recvmsg_into(parts)[0]

    # Processes

    def _process(self, pid: int) -> SimulatedProcess:
        for process in self.machine.processes:
            if process.pid == pid and not is_gone(process):
                return process
        raise ProcessLookupError(errno.ESRCH, real_os.strerror(errno.ESRCH))

    def kill(self, pid: int, number: int) -> None:
        send_signal(self._process(pid), number)

    def killpg(self, group: int, number: int) -> None:
        # Models of the simulation start no processes, so a group has its leader only.
        send_signal(self._process(group), number)

    def setpgid(self, pid: int, group: int) -> None:
        pass

    def pidfd_open(self, pid: int, flags: int = 0) -> int:
        return self.machine.process.open(ProcessFile(self.machine, self._process(pid)))

    def _wait_for_child(self, pid: int, options: int) -> SimulatedProcess | None:
        """Returns a child that has ended and was not waited for; None if WNOHANG and there is none.

        Raises:
            ChildProcessError: There is no such child.
        """
        machine = self.machine
        thread, process = machine.current, machine.process
        watched: list[SimulatedProcess] = []

        def wake() -> None:
            machine.wake(thread)

        try:
            while True:
                children = [
                    each
                    for each in process.children
                    if not each.is_reaped and pid in (0, -1, each.pid)
                ]
                if not children:
                    raise ChildProcessError(errno.ECHILD, real_os.strerror(errno.ECHILD))
                for child in children:
                    if child.is_over:
                        return child
                if options & real_os.WNOHANG:
                    return None
                for child in children:
                    if child not in watched:
                        watched.append(child)
                        child.exit_watchers.append(wake)
                machine.wait()
        finally:
            for child in watched:
                child.exit_watchers.remove(wake)

    def waitid(self, kind: int, pid: int, options: int) -> Any:
        pid = pid if kind == real_os.P_PID else -1
        if options & real_os.WSTOPPED:
            for child in self.machine.process.children:
                if child.is_stopped and not child.is_over and pid in (-1, child.pid):
                    return _child_state(child, real_signal.SIGSTOP, real_os.CLD_STOPPED)
        child = self._wait_for_child(pid, options)
        if child is None:
            return None
        if not options & real_os.WNOWAIT:
            child.is_reaped = True
        status = child.status or 0
        code = real_os.CLD_EXITED if status >= 0 else real_os.CLD_KILLED
        return _child_state(child, abs(status), code)

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        child = self._wait_for_child(pid, options)
        if child is None:
            return 0, 0
        child.is_reaped = True
        status = child.status or 0
        return child.pid, status << 8 if status >= 0 else -status

    def _exit(self, status: int) -> None:
        self.machine.process.end(status)

    def register_at_fork(self, **_: object) -> None:
        """A simulated process is not copied when it forks."""


def _child_state(child: SimulatedProcess, status: int, code: int) -> Any:
    return types.SimpleNamespace(
        si_pid=child.pid,
        si_uid=real_os.getuid(),
        si_signo=real_signal.SIGCHLD,
        si_status=status,
        si_code=code,
    )


def is_gone(process: SimulatedProcess) -> bool:
    """Returns whether nothing has its pid: it has ended, and its parent or init waited for it."""
    if not process.is_over:
        return False
    return process.is_reaped or process.parent is None or process.parent.is_over


def send_signal(process: SimulatedProcess, number: int) -> None:
    """Do what a signal does to a process."""
    process.signal(number)


class Signal(StandIn):
    """Signals of simulated processes."""

    def signal(self, number: int, handler: Any) -> Any:
        if number in (real_signal.SIGKILL, real_signal.SIGSTOP):
            raise system_error(errno.EINVAL)
        handlers = self.machine.process.signal_handlers
        before = handlers.get(number, real_signal.SIG_DFL)
        handlers[int(number)] = handler
        return before

    def getsignal(self, number: int) -> Any:
        return self.machine.process.signal_handlers.get(number, real_signal.SIG_DFL)

    def set_wakeup_fd(self, descriptor: int, *, warn_on_full_buffer: bool = True) -> int:
        process = self.machine.process
        before, process.wakeup_descriptor = process.wakeup_descriptor, descriptor
        return before

    def pthread_sigmask(self, how: int, mask: Any) -> set[int]:
        return set()

    def pidfd_send_signal(self, descriptor: int, number: int, *_: object) -> None:
        process = self.machine.file_of(descriptor).process
        if is_gone(process):
            raise ProcessLookupError(errno.ESRCH, real_os.strerror(errno.ESRCH))
        send_signal(process, number)


class Poll:
    """As `select.poll`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._masks: dict[int, int] = {}

    def register(self, descriptor: Any, mask: int = _POLL_ALL) -> None:
        self._masks[descriptor if isinstance(descriptor, int) else descriptor.fileno()] = mask

    def modify(self, descriptor: Any, mask: int) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        if number not in self._masks:
            raise FileNotFoundError(errno.ENOENT, real_os.strerror(errno.ENOENT))
        self._masks[number] = mask

    def unregister(self, descriptor: Any) -> None:
        del self._masks[descriptor if isinstance(descriptor, int) else descriptor.fileno()]

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        machine = self._machine
        if (ready := self._ready()) or timeout_ms == 0:
            return ready
        deadline_ns = None
        if timeout_ms is not None and timeout_ms > 0:
            deadline_ns = machine.now_ns + round(timeout_ms * 1_000_000)
        thread = machine.current
        files = [machine.file_of(each) for each in self._masks]

        def wake(_: File) -> None:
            machine.wake(thread)

        for file in files:
            file.watchers.append(wake)
        try:
            while not (ready := self._ready()):
                if deadline_ns is not None and machine.now_ns >= deadline_ns:
                    break
                machine.wait(deadline_ns)
        finally:
            for file in files:
                if wake in file.watchers:
                    file.watchers.remove(wake)
        return ready

    def _ready(self) -> list[tuple[int, int]]:
        ready = []
        for descriptor, mask in self._masks.items():
            try:
                file = self._machine.file_of(descriptor)
            except OSError:
                ready.append((descriptor, real_select.POLLNVAL))
                continue
            found = 0
            if mask & real_select.POLLIN and file.is_readable:
                found |= real_select.POLLIN
            if mask & real_select.POLLOUT and file.is_writable:
                found |= real_select.POLLOUT
            if file.is_hung_up:
                found |= real_select.POLLHUP
            if file.is_reset:
                found |= real_select.POLLERR
            if found:
                ready.append((descriptor, found))
        return ready


class Select(StandIn):
    """Waiting for descriptors."""

    def poll(self) -> Poll:
        return Poll(self.machine)


class Fcntl(StandIn):
    """Seals of shared memory, and how much of a socket is unread."""

    def fcntl(self, descriptor: int, command: int, argument: int = 0) -> Any:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_fcntl.fcntl(descriptor, command, argument)
        file = self.machine.file_of(descriptor)
        if not isinstance(file, MemoryFile):
            raise system_error(errno.EINVAL)
        if command == _F_ADD_SEALS:
            file.add_seals(argument)
            return 0
        return file.seals if command == _F_GET_SEALS else 0

    def ioctl(self, descriptor: int, command: int, argument: bytes = b"") -> bytes:
        assert command == termios.TIOCOUTQ
        return struct.pack("i", self.machine.file_of(descriptor).unread_bytes)


class MappedMemory:
    """As `mmap.mmap`: it is unmapped when nothing refers to it.

    Classes for memory of a size are subclasses of ctypes, whose objects have a buffer.
    """

    unmap: Callable[[], None]

    def size(self) -> int:
        return len(self)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> Any:
        part = memoryview(self).cast("B")[key]  # type: ignore[arg-type]
        return part.tobytes() if isinstance(key, slice) else part

    def __setitem__(self, key: Any, value: Any) -> None:
        memoryview(self).cast("B")[key] = value  # type: ignore[arg-type]

    def close(self) -> None:
        self.unmap()

    def __del__(self) -> None:
        self.unmap()


@functools.lru_cache(maxsize=256)
def _mapped_memory(size: int) -> Any:
    return type("mmap", (MappedMemory, ctypes.c_ubyte * size), {})


def map_memory(machine: Machine, descriptor: int, size: int, *, trackfd: bool = True) -> Any:
    """Map shared memory; as long as it is mapped, or the process lives, it is there.

    Python keeps a descriptor of its own for each mapping, unless it is told not to.
    """
    process, file = machine.process_of(descriptor), machine.file_of(descriptor)
    if trackfd:
        kept = process.open(file)

        def unmap() -> None:
            if process.files.get(kept) is file:
                process.close(kept)

    else:
        file.references += 1

        def unmap() -> None:
            if unmap in process.exit_watchers:
                process.exit_watchers.remove(unmap)
                file.release()

        process.exit_watchers.append(unmap)
    mapping = _mapped_memory(size).from_buffer(file.data)
    mapping.unmap = unmap
    return mapping


class Mmap(StandIn):
    """Maps simulated shared memory."""

    def mmap(self, descriptor: int, size: int, *args: Any, **options: Any) -> Any:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_mmap.mmap(descriptor, size, *args, **options)
        data = self.machine.file_of(descriptor).data
        if size > len(data):
            raise ValueError("mmap length is greater than file size")
        return map_memory(self.machine, descriptor, size or len(data), **options)


class GuardedMapping:
    """As the project's mapping of memory that a client may shrink while it is copied."""

    machine: Machine

    def __init__(self, descriptor: int, size: int) -> None:
        process = self.machine.process_of(descriptor)
        self._file = file = self.machine.file_of(descriptor)
        file.references += 1

        def unmap() -> None:
            if unmap in process.exit_watchers:
                process.exit_watchers.remove(unmap)
                file.release()

        process.exit_watchers.append(unmap)
        self._unmap = unmap
        self.is_broken = False
        self.size = size

    def read(self, offset: int, target: int, size: int) -> bool:
        for at in range(0, size, _COPIED_BYTES):
            part = self._part(offset + at, min(_COPIED_BYTES, size - at))
            ctypes.memmove(target + at, part, len(part))
        return not self.is_broken

    def write(self, offset: int, source: int, size: int) -> bool:
        for at in range(0, size, _COPIED_BYTES):
            count = min(_COPIED_BYTES, size - at)
            if len(self._part(offset + at, count)) == count:
                self._file.write(offset + at, ctypes.string_at(source + at, count))
        return not self.is_broken

    def _part(self, offset: int, size: int) -> bytes:
        """A part, after others have run; what the file has no more of is zero."""
        assert offset + size <= self.size
        self.machine.sleep(_SYSTEM_CALL_NS)
        part: bytes = b"" if self.is_broken else self._file.read(offset, size)
        if len(part) < size:
            self.is_broken = True
        return part

    def __del__(self) -> None:
        self._unmap()


class Resource(StandIn):
    """The limit of descriptors."""

    def getrlimit(self, kind: int) -> tuple[int, int]:
        if kind != real_resource.RLIMIT_NOFILE:
            return real_resource.getrlimit(kind)
        process = self.machine.process
        return process.descriptor_limit, process.descriptor_limit

    def setrlimit(self, kind: int, limits: tuple[int, int]) -> None:
        if kind == real_resource.RLIMIT_NOFILE:
            self.machine.process.descriptor_limit = limits[0]


class Socket:
    """As `socket.socket`, for simulated connections."""

    machine: Machine  # of a subclass that belongs to a machine

    def __init__(
        self,
        family: int = real_socket.AF_INET,
        type: int = real_socket.SOCK_STREAM,  # noqa: A002  the name of the real one
        proto: int = 0,
        fileno: int | None = None,
    ) -> None:
        if fileno is None:
            number = self.machine.next_number()
            fileno = self.machine.process.open(ListenerFile(self.machine, f"listener {number}"))
        self._descriptor = fileno
        self.file = self.machine.file_of(fileno)
        self._files = self.machine.process_of(fileno).files
        self.family = family
        self.timeout: float | None = None

    @property
    def type(self) -> int:
        if isinstance(self.file, PacketFile):
            return real_socket.SOCK_SEQPACKET
        return real_socket.SOCK_STREAM

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            process = self.machine.process_of(descriptor)
            if not process.is_over:  # or all was closed already
                process.close(descriptor)

    def detach(self) -> int:
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) in getattr(self, "_files", ()):
            self.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def setblocking(self, blocking: bool) -> None:
        self.settimeout(None if blocking else 0.0)

    def settimeout(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._open_file().is_blocking = timeout is None

    def gettimeout(self) -> float | None:
        return self.timeout

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        file = self._open_file()
        if (level, option) == (real_socket.SOL_SOCKET, real_socket.SO_SNDBUF):
            peer = getattr(file, "peer", None)
            if peer is not None:
                peer.capacity = max(2 * value, _LEAST_BUFFER_BYTES)

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        file = self._open_file()
        if level != real_socket.SOL_SOCKET:
            return 0
        if option == real_socket.SO_TYPE:
            return self.type
        if option == real_socket.SO_SNDBUF:
            peer = getattr(file, "peer", None)
            return STREAM_BYTES if peer is None else peer.capacity
        if option == real_socket.SO_ERROR and file.is_reset:
            file.is_reset = False
            return errno.ECONNRESET
        if option == getattr(real_socket, "SO_PEERCRED", -1):
            return struct.pack("3i", self.machine.process.pid, real_os.geteuid(), 0)
        return 0

    def _open_file(self) -> Any:
        file = self._files.get(self._descriptor)
        if file is None:
            raise system_error(errno.EBADF)
        self.machine.now_ns += _SYSTEM_CALL_NS
        return file

    def _may_wait(self, flags: int = 0) -> bool:
        if self.timeout is not None:
            return self.timeout > 0
        return self.file.is_blocking and not flags & real_socket.MSG_DONTWAIT

    def send(self, data: Any, flags: int = 0) -> int:
        return self._send(data, (), flags)

    def sendmsg(
        self, buffers: Sequence[Any], ancillary: Sequence[Any] = (), flags: int = 0, *_: object
    ) -> int:
        files = []
        for _level, _kind, data in ancillary:
            numbers = array.array("i")
            numbers.frombytes(bytes(data))
            files += [self.machine.file_of(number) for number in numbers]
        if len(files) > _MOST_FILES:
            raise system_error(errno.EINVAL)
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        return self._send(data, tuple(files), flags)

    def _send(self, data: Any, files: tuple[File, ...], flags: int) -> int:
        file = self._open_file()
        data = memoryview(data).cast("B") if not isinstance(data, bytes) else data
        self.machine.pause_between_calls()
        while True:
            try:
                return file.send(data, files)
            except BlockingIOError:  # noqa: PERF203  it waits then
                if not self._may_wait(flags):
                    raise
                self._wait(lambda: file.is_writable)

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        deadline_ns = _deadline(self.machine, self.timeout)
        if not self.file.wait(is_ready, deadline_ns):
            raise TimeoutError("timed out")

    def sendall(self, data: Any, flags: int = 0) -> None:
        data = memoryview(data).cast("B")
        while len(data):
            data = data[self._send(data, (), flags) :]

    def _receive(self, size: int, flags: int) -> tuple[bytes, tuple[File, ...]]:
        file = self._open_file()
        self.machine.pause_between_calls()
        while True:
            try:
                return file.receive(size)
            except BlockingIOError:  # noqa: PERF203  it waits then
                if not self._may_wait(flags):
                    raise
                self._wait(lambda: file.is_readable)

    def recv(self, size: int, flags: int = 0) -> bytes:
        data, files = self._receive(size, flags)
        for file in files:
            file.release()
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer).cast("B")
        data = self.recv(size or len(view), flags)
        view[: len(data)] = data
        return len(data)

    def recvmsg_into(
        self, buffers: Sequence[Any], ancillary_size: int = 0, flags: int = 0
    ) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
        views = [memoryview(each).cast("B") for each in buffers]
        data, files = self._receive(sum(len(each) for each in views), flags)
        at = 0
        for view in views:
            size = min(len(view), len(data) - at)
            view[:size] = data[at : at + size]
            at += size
        ancillary, told = self._take_files(files, ancillary_size)
        return len(data), ancillary, told, None

    def recvmsg(
        self, size: int, ancillary_size: int = 0, flags: int = 0
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        data, files = self._receive(size, flags)
        ancillary, told = self._take_files(files, ancillary_size)
        return data, ancillary, told, None

    def _take_files(
        self, files: tuple[File, ...], ancillary_size: int
    ) -> tuple[list[tuple[int, int, bytes]], int]:
        told = _TRUNCATED if self.file.is_cut else 0
        if not files:
            return [], told
        process = self.machine.process_of(self._descriptor)
        limit = max(0, ancillary_size - _CONTROL_HEAD_BYTES) // 4
        descriptors, is_truncated = open_in(process, files, limit)
        if is_truncated:
            told |= _CONTROL_TRUNCATED
        if not descriptors:
            return [], told
        return [(*_SCM, array.array("i", descriptors).tobytes())], told

    def shutdown(self, how: int) -> None:
        file = self._open_file()
        if not isinstance(file, SocketFile):
            raise system_error(errno.ENOTCONN)
        file.check_connected()
        if how != real_socket.SHUT_RD:
            file.shut_down()
        if how != real_socket.SHUT_WR:
            file.stop_receiving()

    # Listening

    def bind(self, address: Any) -> None:
        file = self._open_file()
        if isinstance(address, tuple):
            port = address[1] or 10_000 + self.machine.next_number()
            if port in self.machine.listeners:
                raise system_error(errno.EADDRINUSE)
            file.address = (address[0], port)
        else:
            file.address = (address, address)

    def listen(self, backlog: int = 128) -> None:
        file = self._open_file()
        file.backlog = backlog
        self.machine.listeners[file.address[1]] = file

    def accept(self) -> tuple[Socket, Any]:
        file = self._open_file()
        while not file.waiting:
            if not self._may_wait():
                raise BlockingIOError(errno.EAGAIN, real_os.strerror(errno.EAGAIN))
            self._wait(lambda: file.is_readable)
        process = self.machine.process_of(self._descriptor)
        descriptor = process.open(file.waiting[0])  # raises while it stays in the queue
        accepted = file.waiting.popleft()
        accepted.release()
        return self.__class__(fileno=descriptor), ("127.0.0.1", 40_000)

    def connect(self, address: Any) -> None:
        machine, process = self.machine, self.machine.process_of(self._descriptor)
        self._open_file()
        is_tcp = isinstance(address, tuple)
        listener = machine.listeners.get(address[1] if is_tcp else address)
        if listener is None or len(listener.waiting) > listener.backlog:
            raise ConnectionRefusedError(errno.ECONNREFUSED, real_os.strerror(errno.ECONNREFUSED))
        kind, number = TcpFile if is_tcp else SocketFile, machine.next_socket()
        here, there = connect(machine, kind(machine, f"{number}a"), kind(machine, f"{number}b"))
        here.is_blocking = self.file.is_blocking
        here.references, self.file.references = self.file.references, 0
        process.files[self._descriptor] = self.file = here
        there.references += 1  # of the queue
        listener.waiting.append(there)
        listener.changed()

    def getsockname(self) -> Any:
        return getattr(self.file, "address", ("127.0.0.1", 1))

    def getpeername(self) -> Any:
        return ("127.0.0.1", 40_000)

    def __repr__(self) -> str:
        return f"<Socket {self._descriptor} {self.file!r}>"


class BorrowedSocket(Socket):
    """A descriptor as a socket, for one call."""

    def __init__(self, machine: Machine, descriptor: int) -> None:
        self.machine = machine
        super().__init__(fileno=descriptor)

    def __del__(self) -> None:
        """It is not closed."""


class SocketModule(StandIn):
    """Sockets between simulated processes, and those that clients connect to."""

    def __init__(self, real: types.ModuleType, machine: Machine) -> None:
        super().__init__(real, machine)
        self.socket = type("socket", (Socket,), {"machine": machine})

    def socketpair(
        self,
        family: int = real_socket.AF_UNIX,
        type: int = real_socket.SOCK_STREAM,  # noqa: A002
        proto: int = 0,
    ) -> tuple[Socket, Socket]:
        machine = self.machine
        kind = PacketFile if type == real_socket.SOCK_SEQPACKET else SocketFile
        number = machine.next_socket()
        ends = connect(machine, kind(machine, f"{number}a"), kind(machine, f"{number}b"))
        first = machine.process.open(ends[0])
        try:
            second = machine.process.open(ends[1])
        except OSError:
            machine.process.close(first)
            raise
        return self.socket(fileno=first), self.socket(fileno=second)

    def send_fds(self, sock: Socket, buffers: Sequence[Any], fds: Sequence[int], *_: object) -> int:
        return sock.sendmsg(buffers, [(*_SCM, array.array("i", fds))])

    def recv_fds(
        self, sock: Socket, size: int, maxfds: int, flags: int = 0
    ) -> tuple[bytes, list[int], int, Any]:
        data, ancillary, told, _ = sock.recvmsg(size, _CONTROL_HEAD_BYTES + 4 * maxfds, flags)
        numbers = array.array("i")
        for _level, _kind, part in ancillary:
            numbers.frombytes(part)
        return data, list(numbers), told, None


class Popen:
    """As `subprocess.Popen`; what a command runs is found in the table of programs."""

    machine: Machine
    programs: Callable[[Sequence[str]], tuple[str, Callable[[list[str]], object]]]

    def __init__(
        self,
        args: Sequence[str],
        *,
        pass_fds: Iterable[int] = (),
        env: dict[str, str] | None = None,
        **_: object,
    ) -> None:
        machine = self.machine
        parent = machine.process
        if machine.process_limit is not None and machine.live_count >= machine.process_limit:
            raise BlockingIOError(errno.EAGAIN, real_os.strerror(errno.EAGAIN))
        name, main = type(self).programs(args)
        arguments: list[str] = []
        delay_ns = _SPAWN_NS + int(parent.random.random() * 4 * _SPAWN_NS)
        process = machine.start_process(name, lambda: main(arguments), parent, delay_ns)
        if env is not None:
            process.environment = dict(env)
        passed = {str(each): str(process.open(machine.file_of(each))) for each in pass_fds}
        arguments += [passed.get(each, each) for each in args]
        self._process = process
        self.args = args
        self.pid = process.pid
        self.returncode: int | None = None
        self.stdout = self.stderr = self.stdin = None

    def poll(self) -> int | None:
        process = self._process
        if self.returncode is None and process.is_over:
            # As the real one: somebody else waited for it, and its status is not known.
            self.returncode = 0 if process.is_reaped else process.status
            process.is_reaped = True
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        machine, process = self.machine, self._process
        deadline_ns = _deadline(machine, timeout)
        thread = machine.current

        def wake() -> None:
            machine.wake(thread)

        process.exit_watchers.append(wake)
        try:
            while self.poll() is None:
                if deadline_ns is not None and machine.now_ns >= deadline_ns:
                    raise real_subprocess.TimeoutExpired(self.args, timeout or 0)
                machine.wait(deadline_ns)
        finally:
            process.exit_watchers.remove(wake)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            send_signal(self._process, number)

    def kill(self) -> None:
        self.send_signal(real_signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(real_signal.SIGTERM)


def thread_pool(machine: Machine) -> ThreadPool:
    """Returns the executor that an event loop has if it was given none."""
    future = type("Future", (Future,), {"machine": machine})
    made: ThreadPool = type(
        "ThreadPoolExecutor", (ThreadPool,), {"machine": machine, "future": future}
    )(thread_name_prefix="asyncio")
    return made


class Secrets(StandIn):
    """Secrets that the seed decides."""

    def token_bytes(self, size: int = 32) -> bytes:
        random = self.machine.random_of(f"secret {self.machine.next_number()}")
        return bytes(int(random.random() * 256) for _ in range(size))

    def token_hex(self, size: int = 32) -> str:
        return self.token_bytes(size).hex()


def stand_ins(machine: Machine) -> dict[Any, Any]:
    """Returns what replaces modules, classes and functions of the real system, by these."""
    of_machine = {"machine": machine}
    time = Time(real_time, machine)
    future = type("Future", (Future,), of_machine)
    pool = type("ThreadPoolExecutor", (ThreadPool,), {**of_machine, "future": future})
    queue = StandIn(real_queue, machine)
    queue.SimpleQueue = simple_queue = type("SimpleQueue", (SimpleQueue,), of_machine)
    subprocess = StandIn(real_subprocess, machine)
    subprocess.Popen = type("Popen", (Popen,), of_machine)
    table = {
        real_time: time,
        real_os: Os(real_os, machine),
        real_socket: SocketModule(real_socket, machine),
        real_select: Select(real_select, machine),
        real_signal: Signal(real_signal, machine),
        real_threading: Threading(real_threading, machine),
        real_fcntl: Fcntl(real_fcntl, machine),
        real_mmap: Mmap(real_mmap, machine),
        real_resource: Resource(real_resource, machine),
        real_queue: queue,
        real_subprocess: subprocess,
        real_secrets: Secrets(real_secrets, machine),
        real_queue.SimpleQueue: simple_queue,
        real_futures.Future: future,
        real_futures.ThreadPoolExecutor: pool,
        guarded_copy.GuardedMapping: type("GuardedMapping", (GuardedMapping,), of_machine),
    }
    for name in ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"):
        table[getattr(real_time, name)] = getattr(time, name)
    table[real_time.sleep] = time.sleep
    return table
