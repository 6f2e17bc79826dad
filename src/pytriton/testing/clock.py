# SPDX-License-Identifier: Apache-2.0
"""Time in tests: a clock that a test moves, and an asyncio event loop that runs on it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

_SECOND_NS = 1_000_000_000

_Result = TypeVar("_Result")


class FakeTimer:
    """A callback that a `FakeClock` calls at its time, unless it is cancelled before."""

    def __init__(self, when_ns: int, callback: Callable[[], object]) -> None:
        self._when_ns = when_ns
        self._callback: Callable[[], object] | None = callback
        self._is_cancelled = False

    def when(self) -> float:
        """Returns the time of the call in seconds."""
        return self._when_ns / _SECOND_NS

    def cancel(self) -> None:
        """Do not call the callback; this may be called twice."""
        self._is_cancelled = True
        self._callback = None

    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._is_cancelled

    def _call(self) -> None:
        # A timer that is over refers to nothing: who keeps it does not keep what it called.
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class FakeClock:
    """A clock whose time passes only when a test says so.

    Code under test gets it in one of three ways:

    - as its `clock` argument: calling a `FakeClock` returns seconds, as `time.monotonic` does;
    - in place of the module `time`: it has the functions of that module that read the time, and a
      `sleep` that takes no time. `monkeypatch.setattr(my_model, "time", clock)` installs it in
      `my_model.py`, if that says `import time`;
    - as the time of an event loop: `run` replaces `asyncio.run`.

    Times are kept in whole nanoseconds, so that sums of seconds have no rounding errors.

    Args:
        start_s: the time at the beginning, in seconds.

    Attributes:
        now_ns: the time in nanoseconds. Setting it calls no timers, as if the program had blocked.

    Example:
        ```python
        clock = FakeClock()
        clock.call_later(30, print, "half a minute later")
        clock.advance(60)  # prints it
        ```
    """

    def __init__(self, start_s: float = 1000.0) -> None:
        self.now_ns: int = round(start_s * _SECOND_NS)
        self._timers: list[tuple[int, int, FakeTimer]] = []
        self._numbers = itertools.count()  # timers of the same time are called in their order

    def __call__(self) -> float:
        """Returns the time in seconds."""
        return self.now_ns / _SECOND_NS

    def __repr__(self) -> str:
        return f"<FakeClock at {self():g} s with {len(self._timers)} timers>"

    # As the module `time`

    def monotonic(self) -> float:
        """Returns the time in seconds."""
        return self()

    def perf_counter(self) -> float:
        """Returns the time in seconds."""
        return self()

    def time(self) -> float:
        """Returns the time in seconds."""
        return self()

    def monotonic_ns(self) -> int:
        """Returns the time in nanoseconds."""
        return self.now_ns

    def perf_counter_ns(self) -> int:
        """Returns the time in nanoseconds."""
        return self.now_ns

    def time_ns(self) -> int:
        """Returns the time in nanoseconds."""
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        """Let time pass as in a call that blocks: timers that become due are called later."""
        self.now_ns = self.after_ns(seconds)

    # Timers

    def after_ns(self, delay_s: float) -> int:
        """Returns the time after a delay, in nanoseconds.

        It is a nanosecond later at least, so that a loop of ever shorter waits comes to its end.
        """
        return self.now_ns + (max(round(delay_s * _SECOND_NS), 1) if delay_s > 0 else 0)

    @property
    def timer_count(self) -> int:
        """The number of timers whose time has not come, with those that were cancelled."""
        return len(self._timers)

    @property
    def next_ns(self) -> int | None:
        """The time of the next timer that was not cancelled, in nanoseconds; None without one."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def call_later(
        self, delay_s: float, callback: Callable[..., object], *arguments: object
    ) -> FakeTimer:
        """Call a function when so much time has passed; it is never called at once."""
        return self._add(self.after_ns(delay_s), partial(callback, *arguments))

    def call_at(
        self, when_s: float, callback: Callable[..., object], *arguments: object
    ) -> FakeTimer:
        """Call a function at a time; it is never called at once."""
        return self._add(round(when_s * _SECOND_NS), partial(callback, *arguments))

    def _add(self, when_ns: int, callback: Callable[[], object]) -> FakeTimer:
        timer = FakeTimer(when_ns, callback)
        heapq.heappush(self._timers, (when_ns, next(self._numbers), timer))
        return timer

    # What a test does

    def advance(self, seconds: float) -> None:
        """Let time pass, with every timer called at its time."""
        self.advance_to(self.after_ns(seconds))

    def advance_to(self, end_ns: int) -> None:
        """Let time pass until a time in nanoseconds, with every timer called at its time."""
        while self._timers and self._timers[0][0] <= end_ns:
            self._call_first()
        self.now_ns = max(self.now_ns, end_ns)

    def call_due(self) -> bool:
        """Call the first timer whose time has come; returns whether there was one."""
        if not self._timers or self._timers[0][0] > self.now_ns:
            return False
        self._call_first()
        return True

    def jump(self) -> bool:
        """Let time pass until the next timer, and call it; returns whether there was one."""
        if self.next_ns is None:
            return False
        self._call_first()
        return True

    def run(self, main: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine as `asyncio.run` does, on the time of this clock.

        A coroutine that waits for an hour takes no time: see `FakeEventLoop`.

        Args:
            main: the coroutine.

        Returns:
            Its result.

        Raises:
            Exception: the exception of the coroutine.

        Example:
            ```python
            clock = FakeClock(start_s=0)
            clock.run(asyncio.sleep(3600))
            assert clock() == 3600
            ```
        """
        loop = FakeEventLoop(self)
        try:
            return loop.run_until_complete(main)
        finally:
            try:
                loop.run_until_complete(_end_tasks(loop))
                loop.run_until_complete(loop.shutdown_default_executor())
            finally:
                loop.close()

    def _call_first(self) -> None:
        when_ns, _, timer = heapq.heappop(self._timers)
        self.now_ns = max(self.now_ns, when_ns)
        timer._call()  # noqa: SLF001  the timer belongs to the clock


class FakeEventLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop on the time of a `FakeClock`.

    Where an ordinary loop would wait for its next timer, this one moves the clock to that time. It
    looks for input of sockets before, and waits for work of `run_in_executor` and
    `asyncio.to_thread`, during which no time passes. Nothing is known of other threads and
    processes: to the loop, they take no time.

    Args:
        clock: the clock; a new one by default.

    Attributes:
        clock: the clock.
    """

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock: FakeClock = clock or FakeClock()
        self._stop_ns: int | None = None  # when `run` and `advance` stop; they do not jump further
        self._thread_work = 0  # calls of `run_in_executor` that have not ended
        super().__init__(_IdleSelector(self._pass_time))

    def time(self) -> float:
        """Returns the time of the clock in seconds."""
        return self.clock()

    def run_in_executor(  # type: ignore[override]  # typeshed has variables of its own for this
        self, executor: Any, func: Callable[..., _Result], *args: Any
    ) -> asyncio.Future[_Result]:
        """Call a function in a thread; no time passes before it has returned."""
        future = super().run_in_executor(executor, func, *args)
        self._thread_work += 1
        future.add_done_callback(self._on_thread_work_done)
        return future

    def run(self) -> None:
        """Run everything that is ready, without letting time pass."""
        self._run_until(self.clock.now_ns)

    def advance(self, seconds: float) -> None:
        """Let time pass, and run everything at its time."""
        self._run_until(self.clock.after_ns(seconds))

    def close(self) -> None:
        """Cancel the tasks, let them end, and close the loop."""
        if not self.is_closed():
            for task in asyncio.all_tasks(self):
                task.cancel()
            self.run()
            self.run_until_complete(self.shutdown_asyncgens())
        super().close()

    def _run_until(self, stop_ns: int) -> None:
        self._stop_ns = stop_ns
        try:
            self.run_forever()
        finally:
            self._stop_ns = None

    def _on_thread_work_done(self, _: asyncio.Future[Any]) -> None:
        self._thread_work -= 1

    def _pass_time(self, wait_s: float | None) -> bool:
        """Let time pass when nothing is ready; returns False to wait for input and threads.

        Args:
            wait_s: the time until the next timer of the loop; None without one.
        """
        deadlines_ns = [] if wait_s is None else [self.clock.after_ns(wait_s)]
        if (timer_ns := self.clock.next_ns) is not None:
            deadlines_ns.append(timer_ns)
        deadline_ns = min(deadlines_ns, default=None)
        if self._stop_ns is not None and (deadline_ns is None or deadline_ns > self._stop_ns):
            self.clock.advance_to(self._stop_ns)
            self.stop()
        elif deadline_ns is None or (self._stop_ns is None and self._thread_work):
            return False
        else:
            self.clock.advance_to(deadline_ns)
        return True


async def _end_tasks(loop: FakeEventLoop) -> None:
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _IdleSelector(selectors.DefaultSelector):
    """Asks before it waits: `on_idle` gets the timeout and returns whether not to wait."""

    def __init__(self, on_idle: Callable[[float | None], bool]) -> None:
        super().__init__()
        self._on_idle = on_idle

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0 or self._on_idle(timeout):
            return ready
        return super().select(None)
