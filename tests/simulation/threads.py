# SPDX-License-Identifier: Apache-2.0
"""Threads of simulated processes, and what they wait for: locks, queues and pools."""

from __future__ import annotations

import contextvars
import queue as real_queue
import types
from collections import deque
from collections.abc import Callable, Iterable
from concurrent import futures as real_futures
from typing import Any

from tests.simulation.machine import SECOND_NS, Machine, ProcessEnd, SimulatedThread
from tests.simulation.stand_in import StandIn, deadline

_POOL_THREADS = 6  # of a pool that was not told; four more than processors


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
        deadline_ns = deadline(machine, timeout if timeout >= 0 else None)
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
        deadline_ns = deadline(self._machine, timeout)
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
        deadline_ns = deadline(self._machine, timeout)
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
        return self._waiters.wait(self._waiters.add(), deadline(self._machine, timeout))


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
        deadline_ns = deadline(machine, timeout)
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
        deadline_ns = deadline(self.machine, timeout)
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
        deadline_ns = deadline(machine, timeout)
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


def thread_pool(machine: Machine) -> ThreadPool:
    """Returns the executor that an event loop has if it was given none."""
    future = type("Future", (Future,), {"machine": machine})
    made: ThreadPool = type(
        "ThreadPoolExecutor", (ThreadPool,), {"machine": machine, "future": future}
    )(thread_name_prefix="asyncio")
    return made
