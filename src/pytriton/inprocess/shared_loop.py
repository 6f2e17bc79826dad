# SPDX-License-Identifier: Apache-2.0
"""An event loop that is run by one thread at a time: its own, or that of a waiting caller.

A caller that waits alone for one response after another runs the loop itself. Then its request
does not go through another thread: on two busy cores, 2 threads take 380 us, one takes 250.

            a caller waits for the third time, and there are no other requests
     keeper runs ───────────────────────────────────────────────────────► parked: callers run it
          ▲                                                                      │
          └──────────────────────────────────────────────────────────────────────┘
            there is other work for the loop, or no caller came for some milliseconds
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import selectors
import sys
import threading
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pytriton.inprocess.interrupts import can_defer_handlers, without_interrupts
from pytriton.runtime.transport.loop_spinner import LinuxMachine, use_machine

_TICK_S = 0.005  # between two looks of the keeper at whether callers still run the loop
_LEAVE_S = 0.001  # for the keeper to leave; it may be in a callback
_LONE_CALLS = 3  # in a row, after which a caller runs the loop
_CANCEL_S = 1.0  # for tasks that are left when the loop ends

T = TypeVar("T")


class SharedLoop:
    """The loop, and whose turn it is to run it. `start` it before anything else."""

    def __init__(self) -> None:
        selector = selectors.DefaultSelector()
        self.loop: asyncio.SelectorEventLoop = asyncio.SelectorEventLoop(selector)
        self.open_count = 0  # requests and operations that the loop works on; only in a turn
        self._machine = _Machine.open(selector)
        if self._machine is not None:
            use_machine(self.loop, self._machine)
        self._turn = threading.Lock()  # its holder runs the loop
        # Its holder may post. Reentrant, because a finalizer may post while its own thread does.
        self._posting = threading.RLock()
        self._runner = 0  # the thread that has it
        self._keeper = threading.Thread(target=self._keep, name="pytriton-engine", daemon=True)
        self._is_parked = False
        self._is_ending = False
        self._return = threading.Event()  # the keeper is needed
        self.is_run_by_caller: bool = False
        self._turn_count = 0  # turns of callers
        self._lone_calls = 0

    def start(self) -> None:
        """Start the thread that runs the loop."""
        self._keeper.start()

    def end(self) -> None:
        """Stop the loop and close it; its thread ends soon."""
        self._is_ending = True
        with contextlib.suppress(RuntimeError):  # it is closed
            self.post(self.loop.stop)

    def join(self) -> None:
        """Wait until the loop's thread has ended."""
        self._keeper.join()

    def wake(self) -> None:
        """Let the loop's own thread run it again: there is work that no caller waits for."""
        if self._is_parked:
            self._return.set()

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the loop soon; raises RuntimeError if the loop is closed."""
        with self._posting:
            self.loop.call_soon_threadsafe(function, *arguments)
        self.wake()

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop; raises RuntimeError if the loop is closed."""
        with self._posting:
            running = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        self.wake()
        return running

    @property
    def is_own_thread(self) -> bool:
        """Whether the calling thread runs the loop now, so that it must not wait for the loop."""
        return self._runner == threading.get_ident()

    # The loop's own thread

    def _keep(self) -> None:
        while not self._is_ending:
            with self._turn:
                self._runner = threading.get_ident()
                # A caller may have stopped the loop to park this thread while it was not running.
                if not self._is_ending and not self._is_parked:
                    self.loop.run_forever()
                self._runner = 0
            if self._is_parked:
                self._park()
        # Posted functions are called before the loop is closed, because callers may wait for them.
        with self._turn, self._posting:
            self._runner = threading.get_ident()
            self._finish()
            self._runner = 0
            self.loop.close()

    def _finish(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCEL_S))

    def _park(self) -> None:
        """Let callers run the loop until they need the keeper, or do not come any more."""
        seen = -1
        while not self._return.wait(_TICK_S):
            if self._turn.locked():
                continue
            if self._turn_count == seen or self.open_count:
                break
            seen = self._turn_count
        self._is_parked = False
        self._lone_calls = 0
        self._return.clear()

    # Callers

    def call_in_turn(self, function: Callable[..., object], *arguments: Any) -> bool:
        """Call a function here and now, as a callback of the loop; False if others run the loop."""
        if self.open_count:
            self._lone_calls = 0
            return False
        self._lone_calls += 1
        if not self._is_parked or not _may_run():
            return False
        return without_interrupts(None, self._call, function, arguments)

    def _call(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> bool:
        if not self._begin_turn():
            return False
        events._set_running_loop(self.loop)  # noqa: SLF001  for runners of callbacks
        try:
            function(*arguments)
        finally:
            events._set_running_loop(None)  # noqa: SLF001
            self._end_turn()
        return True

    def run_until(self, has_come: Callable[[], bool]) -> None:
        """Run the loop until a callback of it calls `interrupt`, unless it has come before.

        It may return sooner, and does at once if others run the loop.
        """
        if self._is_parked and _may_run():
            without_interrupts(self._interrupt_soon, self._run_until, has_come)

    def _run_until(self, has_come: Callable[[], bool]) -> None:
        if not self._begin_turn():
            return
        self.is_run_by_caller = True
        try:
            if not has_come() and not self._is_ending:
                self.loop.run_forever()
        finally:
            self.is_run_by_caller = False
            self._end_turn()
        if self.open_count or self._is_ending:  # others wait for the loop
            self._return.set()

    def interrupt(self) -> None:
        """Let `run_until` return; called by a callback of the loop."""
        if self.is_run_by_caller:
            self.loop.stop()

    def _interrupt_soon(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _begin_turn(self) -> bool:
        if not self._turn.acquire(blocking=False) and not self._take_turn_of_keeper():
            return False
        self._runner = threading.get_ident()
        if self._machine is not None:
            self._machine.may_spin = True
        return True

    def _take_turn_of_keeper(self) -> bool:
        """Wait for a keeper that has been told to park, and is about to leave.

        Without this, a quick caller would find it there each time, and call it back.
        """
        is_leaving = self._runner == self._keeper.ident and self._is_parked
        return is_leaving and self._turn.acquire(timeout=_LEAVE_S)

    def _end_turn(self) -> None:
        if self._machine is not None:
            self._machine.may_spin = False
        self._runner = 0
        self._turn_count += 1
        self._turn.release()

    def park_soon(self) -> None:
        """Let callers run the loop from now on, if a caller has often been alone."""
        if self._lone_calls >= _LONE_CALLS and not self._is_parked and _may_run():
            self._is_parked = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self.loop.stop)


def _may_run() -> bool:
    """Returns whether this thread may run a loop: it runs no other, and nothing interrupts it."""
    return events._get_running_loop() is None and can_defer_handlers()  # noqa: SLF001


class _Machine(LinuxMachine):
    """Lets the loop poll only while a caller runs it: the keeper would keep a caller waiting."""

    may_spin = False

    @classmethod
    def open(cls, selector: selectors.BaseSelector) -> _Machine | None:
        """Returns None if this is not Linux."""
        fileno = getattr(selector, "fileno", None)
        with contextlib.suppress(OSError):
            if fileno is not None:
                return cls(fileno(), os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC))
        return None

    def running_count(self) -> int:
        """See `Machine`."""
        return super().running_count() if self.may_spin else sys.maxsize
