# SPDX-License-Identifier: Apache-2.0
"""Lets an event loop poll for some microseconds before it sleeps, where that shortens a request.

A process that sleeps is woken late, and its caches are cold: while one client sends one request at
a time, a server that polls instead answers a quarter sooner (small requests, 2 cores). Polling
costs processor time that nobody else wants: it is done only while a core is idle, ends with the
next event of the loop, whichever it is, and stops at once where it does not pay.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

SPIN_NS = 120_000  # a small bound function answers after 60 us, a small model.py after 100 us
# A request with tensors in GPU memory has no bytes to carry, so that being woken is what it waits
# for most. Its instance, and its client until the next one, need longer than those above. The
# process of the model waits longest: for the client, its front end and the core. Too short a time
# is worse than none: each process that sleeps makes others wait longer, so that they sleep, too.
DEVICE_SPIN_NS = 1_000_000
DEVICE_SPARE_CORES = 2  # for the client and the front end
MESSAGE_SPIN_NS = 200_000  # a caller needs 90 us, and its program some, until its next request
_SHORT_NS = 4_000
_GAP_NS = 25_000  # a step takes 2 us; if one takes this long, another process got the core
_GAP_SHARE = 8  # or as long as one of so many parts of the time, where that is more
_MIN_PAUSE_NS = 1_000_000
_MAX_PAUSE_NS = 1_000_000_000

_allowed_cores = 1  # of this process; a single core is never idle while a request is served
_allowed_cores_of_workers = 0


def allow_spinning(cores: int, *, also_workers: bool = False) -> None:
    """Allow the event loops of this process to poll, as one that may use this many cores.

    `also_workers` allows it to its workers, which serve this process alone.
    """
    global _allowed_cores, _allowed_cores_of_workers  # noqa: PLW0603  properties of the process
    _allowed_cores = cores
    _allowed_cores_of_workers = cores if also_workers else 0


def allowed_cores_of_device_workers() -> int:
    """Returns for how many running threads a worker with requests in GPU memory may poll."""
    return max(0, _allowed_cores - DEVICE_SPARE_CORES)


def allowed_cores_of_workers() -> int:
    """Returns how many cores the workers of this process may use and poll; 0: they must not."""
    return _allowed_cores_of_workers


class SpinMachine(Protocol):
    """The clock, the events and the load of a machine."""

    def now_ns(self) -> int:
        """Returns the time."""

    def has_event(self) -> bool:
        """Returns whether the event loop has something to do."""

    def running_count(self) -> int:
        """Returns the number of threads that run, or wait for a core."""


class SpinPolicy:
    """Decides whether to poll in one kind of situation, from what came of it before.

    After a failure there is a pause, and each further failure doubles it, up to a second.
    """

    __slots__ = ("_pause_ns", "resume_ns")

    def __init__(self) -> None:
        self._pause_ns = _MIN_PAUSE_NS
        self.resume_ns = 0  # when polling pays again

    def record(self, now_ns: int, *, is_success: bool) -> None:
        """Take note of what polling came to."""
        if is_success:
            self._pause_ns = _MIN_PAUSE_NS
        else:
            self.resume_ns = now_ns + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, _MAX_PAUSE_NS)


class LoopSpinner:
    """Polls for the next event of a loop, in a process that may use this many cores.

    An event that comes before `short_ns` was not worth waiting for, as there is other work.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        machine: SpinMachine,
        cores: int,
        short_ns: int = _SHORT_NS,
    ) -> None:
        self._short_ns = short_ns
        self._call_soon = call_soon
        self._machine = machine
        self._cores = cores
        self._policy: SpinPolicy | None = None  # of the polling that is to come
        self._spin_ns = SPIN_NS

    def spin_soon(self, policy: SpinPolicy, spin_ns: int = SPIN_NS) -> None:
        """Poll when this iteration of the loop is over, if that probably pays."""
        if self._machine.now_ns() >= policy.resume_ns:
            if self._policy is None:
                self._call_soon(self._spin)
            self._policy = policy
            self._spin_ns = spin_ns

    def _spin(self) -> None:
        policy, self._policy = self._policy, None
        assert policy is not None, "it is set before this is called"
        spin(self._machine, policy, self._cores, self._short_ns, self._spin_ns)


def spin(
    machine: SpinMachine, policy: SpinPolicy, cores: int, short_ns: int, spin_ns: int = SPIN_NS
) -> None:
    """Poll until there is an event, or it does not pay any more; the policy takes note of it."""
    now_ns = began_ns = machine.now_ns()
    is_success = False
    # This thread and its peer have a core each, and no other thread waits for one.
    if machine.running_count() <= cores:
        end_ns = began_ns + spin_ns
        gap_ns = max(_GAP_NS, spin_ns // _GAP_SHARE)
        while now_ns < end_ns:
            if machine.has_event():
                is_success = now_ns - began_ns >= short_ns
                break
            last_ns, now_ns = now_ns, machine.now_ns()
            if now_ns - last_ns > gap_ns:
                break
    policy.record(now_ns, is_success=is_success)


class LinuxMachine:
    """This machine, and the event loop whose descriptor of epoll this is."""

    def __init__(self, epoll_fd: int, load_fd: int) -> None:
        self.now_ns = time.monotonic_ns
        self._load_fd = load_fd
        self._poll = select.poll()
        self._poll.register(epoll_fd, select.POLLIN)

    def has_event(self) -> bool:
        """See `SpinMachine`."""
        return bool(self._poll.poll(0))

    def running_count(self) -> int:
        """See `SpinMachine`; /proc/loadavg is, for example, `0.08 0.73 1.41 2/176 42`."""
        return int(os.pread(self._load_fd, 64, 0).split(b" ", 4)[3].split(b"/")[0])

    def __del__(self) -> None:
        os.close(self._load_fd)


class MessagePoller:
    """Polls a socket for its next message, for a thread that would block."""

    def __init__(self, machine: SpinMachine, cores: int, spin_ns: int = MESSAGE_SPIN_NS) -> None:
        self._machine = machine
        self._cores = cores
        self._spin_ns = spin_ns
        self._policy = SpinPolicy()

    @classmethod
    def of_socket(cls, fd: int, cores: int, spin_ns: int = MESSAGE_SPIN_NS) -> MessagePoller | None:
        """Returns None where polling is not possible."""
        with contextlib.suppress(OSError):  # not on Linux
            load_fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
            return cls(LinuxMachine(fd, load_fd), cores, spin_ns)
        return None

    def poll(self) -> None:
        """Poll for a while, if that probably pays."""
        if self._machine.now_ns() >= self._policy.resume_ns:
            spin(self._machine, self._policy, self._cores, _SHORT_NS, self._spin_ns)


def make_spinner(loop: asyncio.AbstractEventLoop, short_ns: int = _SHORT_NS) -> LoopSpinner | None:
    """Returns a spinner for a loop; None where polling is not possible or not allowed."""
    machine = _machine_of(loop) if _allowed_cores > 1 else None
    if machine is None:
        return None
    return LoopSpinner(loop.call_soon, machine, _allowed_cores, short_ns)


# All channels of a loop share one: it has a file descriptor.
_machines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LinuxMachine]
_machines = weakref.WeakKeyDictionary()


def use_machine(loop: asyncio.AbstractEventLoop, machine: LinuxMachine) -> None:
    """Let the spinners of a loop ask this object; for loops other than uvloop's."""
    _machines[loop] = machine


def _machine_of(loop: asyncio.AbstractEventLoop) -> LinuxMachine | None:
    machine = _machines.get(loop)
    epoll_of = getattr(loop, "_get_backend_id", None)  # uvloop's
    if machine is None and epoll_of is not None:
        with contextlib.suppress(OSError):  # not on Linux
            load_fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
            machine = _machines[loop] = LinuxMachine(epoll_of(), load_fd)
    return machine
