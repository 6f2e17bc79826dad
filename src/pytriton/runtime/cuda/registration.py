# SPDX-License-Identifier: Apache-2.0
"""Registers the shared memory of this process with CUDA's driver, once the process uses CUDA.

From registered memory a GPU copies three to five times as fast as from other memory, whatever
library of the user asks for the copy. `RegistrationBook` decides, without threads and calls.
`Registrar` sees each segment that is mapped, and runs a thread from the moment at which it finds
CUDA in use. Only this thread calls the driver, so a call that takes long delays no request.

Two things have to wait for the driver. A segment that is registered is unmapped by the thread,
after it was unregistered. And a block of the peer in such a segment is released only after all work
that was submitted to the GPU: it may still read the block, as copies from registered memory go on
after the call that started them, and the tensor of the user that held the block may be gone.
"""

from __future__ import annotations

import atexit
import enum
import logging
import mmap
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.driver import CudaError
from pytriton.runtime.transport import memory

if TYPE_CHECKING:
    from pytriton.runtime.cuda.driver import Driver
    from pytriton.runtime.transport.memory import MappedBytes, Mapping

logger = logging.getLogger(__name__)

_SHARE = 4  # registered memory is at most one part of this many of the machine's memory
# Without CUDA it is looked for after the first message with shared memory, after twice as many, and
# so on, at last after each of this many: 50 us for 256 large tensors.
_MAX_INTERVAL = 256
_STOP_DEADLINE_S = 1.0
# From one wait for the GPU, which takes 0.1 ms, to the next; releases that come meanwhile share it.
_GATHER_S = 0.001

# The process or its context cannot use CUDA any more: nothing is registered, and nothing will be.
_FATAL = cuda_driver.KERNEL_ERRORS | {
    cuda_driver.NOT_INITIALIZED,
    cuda_driver.DEINITIALIZED,
    cuda_driver.NO_DEVICE,
    cuda_driver.INVALID_CONTEXT,
    cuda_driver.CONTEXT_IS_DESTROYED,
}


class SegmentState(enum.Enum):
    """What the book knows of a mapped segment.

    WAITING: it is to be registered, now or when there is room. REGISTERED: by us. FOREIGN: the
    user's code has registered it, and unregisters it. REFUSED: the driver cannot register it.
    """

    WAITING = enum.auto()
    REGISTERED = enum.auto()
    FOREIGN = enum.auto()
    REFUSED = enum.auto()


_NEXT_STATES = {
    SegmentState.WAITING: frozenset(
        {SegmentState.REGISTERED, SegmentState.FOREIGN, SegmentState.REFUSED}
    ),
    SegmentState.REGISTERED: frozenset[SegmentState](),
    SegmentState.FOREIGN: frozenset[SegmentState](),
    SegmentState.REFUSED: frozenset[SegmentState](),
}


class _Entry:
    __slots__ = ("size", "state")

    def __init__(self, size: int) -> None:
        self.size = size
        self.state = SegmentState.WAITING


class RegistrationCounts(NamedTuple):
    """How many segments are in each state, and the bytes that are registered."""

    waiting: int
    registered: int
    foreign: int
    refused: int
    registered_bytes: int


class RegistrationBook:
    """The segments that are mapped, by their ids, and which of them to register next."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._entries: dict[int, _Entry] = {}
        self._registered_bytes = 0

    def add(self, segment_id: int, size: int) -> None:
        """Note a segment that was mapped."""
        assert segment_id not in self._entries, f"segment {segment_id} is mapped already"
        self._entries[segment_id] = _Entry(size)

    def next_waiting(self) -> int | None:
        """Returns the oldest segment that there is room for; None if there is none."""
        room = self._limit_bytes - self._registered_bytes
        for segment_id, entry in self._entries.items():
            if entry.state is SegmentState.WAITING and entry.size <= room:
                return segment_id
        return None

    def settle(self, segment_id: int, state: SegmentState) -> None:
        """Note what became of the attempt to register a segment."""
        entry = self._entries[segment_id]
        assert state in _NEXT_STATES[entry.state], f"{entry.state} cannot become {state}"
        entry.state = state
        if state is SegmentState.REGISTERED:
            self._registered_bytes += entry.size

    def remove(self, segment_id: int) -> bool:
        """Forget a segment; returns whether it has to be unregistered before it is unmapped."""
        entry = self._entries.pop(segment_id, None)
        if entry is None or entry.state is not SegmentState.REGISTERED:
            return False
        self._registered_bytes -= entry.size
        return True

    def counts(self) -> RegistrationCounts:
        # A list first: the thread changes the dictionary meanwhile.
        states = [entry.state for entry in list(self._entries.values())]
        waiting, registered, foreign, refused = [states.count(state) for state in SegmentState]
        return RegistrationCounts(waiting, registered, foreign, refused, self._registered_bytes)


class RegistrarState(enum.Enum):
    """WATCHING: CUDA was not found in use yet. ACTIVE: the thread runs. STOPPED: for good."""

    WATCHING = enum.auto()
    ACTIVE = enum.auto()
    STOPPED = enum.auto()


_NEXT_REGISTRAR_STATES = {
    RegistrarState.WATCHING: frozenset({RegistrarState.ACTIVE, RegistrarState.STOPPED}),
    RegistrarState.ACTIVE: frozenset({RegistrarState.STOPPED}),
    RegistrarState.STOPPED: frozenset({RegistrarState.STOPPED}),
}


class _Mapped(NamedTuple):
    mapping: weakref.ref[Mapping]


class _Unmapped(NamedTuple):
    segment_id: int
    address: int
    held: MappedBytes  # what keeps the segment mapped


class _Release(NamedTuple):
    release: Callable[[], None]


class _Marker(NamedTuple):
    is_reached: threading.Event


class _Stop(NamedTuple):
    """The thread has to end."""


_Event = _Mapped | _Unmapped | _Release | _Marker | _Stop


class Registrar:
    """Observes the segments of this process; see `memory.MappingObserver`.

    What it is told comes from finalizers, at any point of any thread, so it must not wait there. It
    puts events into a queue whose `put` is made for that.

    Args:
        find_driver: Returns the driver if the process has loaded it.
        limit_bytes: How much memory may be registered.
    """

    def __init__(self, find_driver: Callable[[], Driver | None], limit_bytes: int) -> None:
        self._find_driver = find_driver
        self._limit_bytes = limit_bytes
        self._set_up()

    def _set_up(self) -> None:
        self.state = RegistrarState.WATCHING
        self.failure = ""  # why it has stopped, if that was an error
        self._early: dict[int, weakref.ref[Mapping]] = {}  # those that the thread does not know
        self._message_count = 0
        self._look_at = 1  # the number of messages after which to look for CUDA
        self._look_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._is_over = False  # the thread reads no more events
        # The thread's own:
        self._book = RegistrationBook(self._limit_bytes)
        self._mappings: dict[int, weakref.ref[Mapping]] = {}
        self._markers: list[_Marker] = []
        self._stuck: list[MappedBytes] = []  # what could not be unregistered
        self._drained_s = 0.0  # when the GPU was waited for last
        self._page = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)  # see `Driver.drain`

    # What happens in the process

    def on_mapped(self, mapping: Mapping) -> None:
        """Have a segment registered, now or when CUDA is found."""
        if self.state is RegistrarState.STOPPED:
            return
        self._early[mapping.id] = weakref.ref(mapping)
        if self.state is RegistrarState.ACTIVE:  # asked after the entry was made; see `_start`
            self._take_early(mapping.id)

    def on_unmapped(self, mapping: Mapping, held: MappedBytes) -> None:
        """Keep a segment mapped until it is unregistered."""
        if self.state is RegistrarState.ACTIVE:
            self._put(_Unmapped(mapping.id, mapping.address, held))
        else:
            self._early.pop(mapping.id, None)

    def on_message(self) -> None:
        """Look for CUDA, now and then: a message has come that has tensors in shared memory."""
        if self.state is not RegistrarState.WATCHING:
            return
        self._message_count += 1
        if self._message_count >= self._look_at:
            self._look_at += min(self._message_count, _MAX_INTERVAL)
            self.look()

    def on_device_memory(self) -> None:
        """Look for CUDA: this process uses it now, and what it was lent waits for the GPU."""
        if self.state is RegistrarState.WATCHING:
            self.look()

    def release_after_work(self, release: Callable[[], None]) -> None:
        """See `release_later`; without the thread, the GPU is waited for here."""
        if self.state is not RegistrarState.ACTIVE:
            driver = self._find_driver()
            if driver is not None:
                _synchronize(driver)
        self.release_later(release)

    def release_later(self, release: Callable[[], None]) -> None:
        """Call `release` after all work that was submitted to the GPU until now."""
        if self.state is RegistrarState.ACTIVE:
            self._put(_Release(release))
        else:
            release()

    def _put(self, event: _Event) -> None:
        self._events.put(event)
        if self._is_over:  # the thread may have ended before it saw the event
            self._drop_events()

    # Its own life

    def look(self) -> None:
        """Start the thread if this process uses CUDA now."""
        if not self._look_lock.acquire(blocking=False):
            return
        try:
            if self.state is RegistrarState.WATCHING:
                driver = self._find_driver()
                if driver is not None and _uses_device(driver):
                    self._start(driver)
        finally:
            self._look_lock.release()

    def stop(self) -> None:
        """End the thread, and register nothing any more. May be called twice."""
        self._change(RegistrarState.STOPPED)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._events.put(_Stop())
            self._thread.join(_STOP_DEADLINE_S)

    def after_fork(self) -> None:
        """Start anew in a forked process, or not at all if CUDA was in use: it is dead here."""
        state, early = self.state, self._early
        self._set_up()
        self._early = early
        if state is not RegistrarState.WATCHING:
            self._change(RegistrarState.STOPPED)

    def counts(self) -> RegistrationCounts:
        """Returns how many segments are in each state."""
        return self._book.counts()

    def wait_until_done(self, timeout_s: float) -> bool:
        """Wait until the thread has done what it was asked for so far; returns whether it has."""
        marker = _Marker(threading.Event())
        self._put(marker)
        return self._thread is None or marker.is_reached.wait(timeout_s)

    def _start(self, driver: Driver) -> None:
        thread = threading.Thread(
            target=self._run, args=(driver,), name="pytriton-cuda", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the process may have no more threads
            self._fail(f"its thread cannot be started: {error}")
            return
        self._thread = thread
        # First: whoever adds a segment to the list after this looks at the state again.
        self._change(RegistrarState.ACTIVE)
        for segment_id in list(self._early):
            self._take_early(segment_id)

    def _take_early(self, segment_id: int) -> None:
        """Hand a segment to the thread, unless another thread does so at this time."""
        if (reference := self._early.pop(segment_id, None)) is not None:
            self._put(_Mapped(reference))

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._change(RegistrarState.STOPPED)
        logger.warning(
            "shared memory is not registered with CUDA any more, so copies are slower: %s", reason
        )

    def _change(self, state: RegistrarState) -> None:
        assert state in _NEXT_REGISTRAR_STATES[self.state], f"{self.state} cannot become {state}"
        self.state = state

    # The thread

    def _run(self, driver: Driver) -> None:
        try:
            driver.allow_captures()
        except CudaError as error:
            logger.debug("a graph that is captured meanwhile may fail: %s", error)
        events: deque[_Event] = deque()
        try:
            while self._work(driver, events):
                self._register(driver)
        except CudaError as error:
            self._fail(str(error))
        except Exception as error:
            logger.exception("the thread that registers memory with CUDA has failed")
            self._fail(f"{type(error).__name__}: {error}")
        self._is_over = True  # before the rest is read; see `_put`
        for event in (*events, *self._markers):
            _drop(event)
        self._drop_events()

    def _work(self, driver: Driver, events: deque[_Event]) -> bool:
        """Wait for events and do what they ask for; returns whether to go on.

        Those that were not dealt with when it raises are still in `events`.
        """
        events.append(self._events.get())
        if isinstance(events[0], _Release):
            # The first one does not wait: until it is released, its sender has to use other memory.
            wait_s = self._drained_s + _GATHER_S - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
        while not self._events.empty():
            events.append(self._events.get())
        if any(isinstance(event, _Release) for event in events):
            self._drain(driver)
        while events:
            event = events[0]
            if isinstance(event, _Stop):
                return False
            if isinstance(event, _Mapped):
                self._add(event.mapping)
            elif isinstance(event, _Unmapped):
                self._unregister(driver, event)
            elif isinstance(event, _Release):
                # Only after it was taken: a release must never happen twice.
                events.popleft()
                event.release()
                continue
            else:
                self._markers.append(event)
            events.popleft()
        return True

    def _drain(self, driver: Driver) -> None:
        for device in driver.active_devices():
            with driver.using(device):
                try:
                    driver.drain(self._page.ctypes.data)
                except CudaError as error:
                    if error.code in _FATAL:
                        raise
                    # Say, no page can be pinned now. A graph that is captured fails with this, but
                    # a block that is released while it is read would give wrong bytes.
                    driver.synchronize()
        self._drained_s = time.monotonic()

    def _add(self, reference: weakref.ref[Mapping]) -> None:
        mapping = reference()
        if mapping is not None:
            self._mappings[mapping.id] = reference
            self._book.add(mapping.id, mapping.size)

    def _register(self, driver: Driver) -> None:
        """Register what waits for it, until there is something else to do."""
        while self._events.empty() and (segment_id := self._book.next_waiting()) is not None:
            devices = driver.active_devices()
            if not devices:
                break
            mapping = self._mappings[segment_id]()
            if mapping is None:
                self._book.remove(segment_id)
                continue
            # Before it is registered: from then on, copies may outlast the calls that started them.
            mapping.release_later = self.release_later
            state = _register(driver, devices[0], mapping)
            if state is SegmentState.REFUSED:
                mapping.release_later = None
            self._book.settle(segment_id, state)
        if self._events.empty():
            for marker in self._markers:
                marker.is_reached.set()
            self._markers.clear()

    def _unregister(self, driver: Driver, event: _Unmapped) -> None:
        self._mappings.pop(event.segment_id, None)
        if not self._book.remove(event.segment_id):
            return
        devices = driver.active_devices()
        if not devices:  # what was registered has ended with its context
            return
        try:
            with driver.using(devices[0]):
                driver.unregister_host(event.address)
        except CudaError as error:
            if error.code in _FATAL:
                raise
            if error.code != cuda_driver.HOST_MEMORY_NOT_REGISTERED:  # say, after a reset
                # The driver takes its pages for those of whatever is mapped there next.
                self._stuck.append(event.held)
                logger.warning("%d bytes stay mapped: %s", len(event.held), error)

    def _drop_events(self) -> None:
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return
            _drop(event)


def _drop(event: _Event) -> None:
    """End an event without the driver; what is registered stays so until the process ends."""
    if isinstance(event, _Release):
        event.release()
    elif isinstance(event, _Marker):
        event.is_reached.set()


def _synchronize(driver: Driver) -> None:
    try:
        for device in driver.active_devices():
            with driver.using(device):
                driver.synchronize()
    except CudaError as error:  # what was submitted has ended with its context
        logger.debug("GPU memory is given back after an error: %s", error)


def _uses_device(driver: Driver) -> bool:
    try:
        return bool(driver.active_devices())
    except CudaError:  # it is loaded, but not initialised, or there is no GPU
        return False


def _register(driver: Driver, device: int, mapping: Mapping) -> SegmentState:
    try:
        with driver.using(device):
            driver.register_host(mapping.address, mapping.size)
    except CudaError as error:
        if error.code in _FATAL:
            raise
        if error.code == cuda_driver.HOST_MEMORY_ALREADY_REGISTERED:
            return SegmentState.FOREIGN
        logger.info("%d bytes of shared memory cannot be registered: %s", mapping.size, error)
        return SegmentState.REFUSED
    return SegmentState.REGISTERED


def install() -> None:
    """Have the segments of this process registered from now on, if it ever uses CUDA.

    For processes that run models. Nothing happens until a message brings tensors in shared memory.
    """
    if memory.observers:
        return
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    registrar = Registrar(cuda_driver.find_loaded, total // _SHARE)
    memory.observers.append(registrar)
    os.register_at_fork(after_in_child=registrar.after_fork)
    # The thread must not call the driver while the driver's own library ends.
    atexit.register(registrar.stop)
