# SPDX-License-Identifier: Apache-2.0
"""Reads a channel for all threads of a process: the first thread that waits reads for all.

There is no thread between the socket and `execute`. A thread that waits becomes the reader if there
is none, and delivers each message to its receiver. Other threads sleep until their message has
arrived, or until the reader has what it waited for; then one of them becomes the reader. The
model's thread is preferred: another reader yields to it after the next message.

An event loop cannot wait itself. The model's thread reads for the loop of the instance, because it
waits for batches nearly all the time. If that thread is busy for long, and for other loops that the
model runs, a helper thread reads.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.transport.arena import IDLE_SECONDS
from pytriton.runtime.transport.channel import IdleReader
from pytriton.runtime.transport.loop_spinner import MESSAGE_SPIN_NS, MessagePoller

if TYPE_CHECKING:
    import asyncio

    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.response_outbox import ResponseOutbox
else:  # whoever calls from an event loop has imported it; it takes 3 MiB of each worker
    asyncio = LazyModule("asyncio")

logger = logging.getLogger(__name__)

# After this time without a reader, a waiter of low priority reads: the model's thread is busy.
BUSY_TIMEOUT_S = 0.1
_FOREVER_S = -1.0


class Waiter:
    """An event for which threads wait in a mailbox."""

    __slots__ = ()
    is_low_priority = False  # True: becomes the reader only after `BUSY_TIMEOUT_S`

    def is_satisfied(self) -> bool:
        """Returns whether the event has happened."""
        raise NotImplementedError

    def on_delivered(self) -> None:
        """Called on the reading thread after a message was delivered and all threads were woken."""


class MessageInbox(Waiter):
    """Stores messages; threads wait for the first one."""

    __slots__ = ("is_low_priority", "messages")

    def __init__(self, *, is_low_priority: bool = False) -> None:
        self.is_low_priority = is_low_priority
        self.messages: deque[Received] = deque()

    def put(self, received: Received) -> Waiter:
        """Store a message."""
        self.messages.append(received)
        return self

    def is_satisfied(self) -> bool:
        """Returns whether there is a message."""
        return bool(self.messages)


# Processes a message and returns its waiter; runs on the reading thread, and must be quick.
Handler = Callable[["Received"], Waiter | None]


class Mailbox:
    """The reading end of a channel. The model's thread waits for `jobs`."""

    def __init__(self, outbox: ResponseOutbox, handlers: Mapping[type, Handler]) -> None:
        self.jobs = MessageInbox()
        self._channel = outbox.channel
        self._handlers = handlers
        self._lock = threading.Lock()
        self._has_reader = False
        # The waiter that was woken to become the reader but has not taken over yet.
        self._next_reader: Waiter | None = None
        self.is_over = False
        self.message_count = 0  # those that were read
        self._sleepers: dict[Waiter, list[threading.Lock]] = {}
        # Waiters of low priority that sleep until another thread has stopped to read.
        self._resting: set[Waiter] = set()
        self._idle_reader = IdleReader(
            outbox.channel, lambda: outbox.uses_memory, lambda: outbox.trim(IDLE_SECONDS)
        )

    @property
    def has_no_reader(self) -> bool:
        """Whether no thread reads or is about to."""
        return not self._has_reader and self._next_reader is None

    def poll_for_jobs(self, cores: int, spin_ns: int = MESSAGE_SPIN_NS) -> None:
        """Let the model's thread poll before it sleeps, in a process that may use these cores."""
        self._idle_reader.poller = MessagePoller.of_socket(self._channel.fileno(), cores, spin_ns)

    def wait(self, waiter: Waiter) -> None:
        """Return once the waiter is satisfied; raises EOFError if the connection has ended."""
        while not waiter.is_satisfied():
            with self._lock:
                if waiter.is_satisfied():
                    break
                if self.is_over:
                    raise EOFError
                wakeup = None if self._become_reader(waiter) else self._add_sleeper(waiter)
            if wakeup is None:
                self._read_for(waiter)
            elif waiter.is_low_priority:
                self._wait_low_priority(waiter, wakeup)
            else:
                wakeup.acquire()
        if self._next_reader is waiter:  # it was woken to read, and does not need to any more
            self._next_reader = None
            self._wake_next_reader()

    def read_available(self) -> None:
        """Deliver the messages that have arrived, without waiting, unless another thread reads."""
        with self._lock:
            if self._has_reader or self.is_over:
                return
            self._has_reader = True
        try:
            while (received := self._channel.receive(socket.MSG_DONTWAIT)) is not None:
                self._dispatch(received)
        except Exception as error:  # noqa: BLE001  logged by `_fail`
            self._fail(error)
        finally:
            with self._lock:
                self._has_reader = False
            self._wake_next_reader()

    def end(self) -> None:
        """End the mailbox; waiting threads get an EOFError."""
        with self._lock:
            self.is_over = True
            wakeups = [wakeup for wakeups in self._sleepers.values() for wakeup in wakeups]
            self._sleepers.clear()
        for wakeup in wakeups:
            wakeup.release()

    def _become_reader(self, waiter: Waiter) -> bool:
        is_next = self._next_reader is waiter
        if is_next:
            self._next_reader = None
        if self._has_reader or waiter.is_low_priority:
            return False
        is_preferred = is_next or waiter is self.jobs
        if not is_preferred and (self._next_reader is not None or self.jobs in self._sleepers):
            return False
        self._has_reader = True
        return True

    def _add_sleeper(self, waiter: Waiter) -> threading.Lock:
        wakeup = threading.Lock()
        wakeup.acquire()
        self._sleepers.setdefault(waiter, []).append(wakeup)
        return wakeup

    def _wait_low_priority(self, waiter: Waiter, wakeup: threading.Lock) -> None:
        """Sleep, but become the reader if there was none for a while."""
        count = self.message_count
        timeout_s = BUSY_TIMEOUT_S
        while not wakeup.acquire(timeout=timeout_s):
            with self._lock:
                is_quiet = count == self.message_count
                count = self.message_count
                if is_quiet and not self.has_no_reader:
                    # A thread waits for messages that do not come: it need not be looked after.
                    self._resting.add(waiter)
                    timeout_s = _FOREVER_S
                elif is_quiet and not self.is_over:
                    self._has_reader = True
                    self._sleepers.pop(waiter, None)
                    break
        else:
            return
        self._read_for(waiter)

    def _read_for(self, waiter: Waiter) -> None:
        is_main = waiter is self.jobs
        try:
            while True:
                received = self._idle_reader.receive() if is_main else self._receive()
                yields = not is_main and self.jobs in self._sleepers
                self._dispatch(received)
                del received
                if yields or waiter.is_satisfied():
                    return
        except Exception as error:
            self._fail(error)
            raise EOFError from error
        finally:
            with self._lock:
                self._has_reader = False
                has_sleepers = bool(self._sleepers)
            if has_sleepers:
                self._wake_next_reader()

    def _fail(self, error: Exception) -> None:
        """End the mailbox: the server has ended, or a thread may wait for the lost message."""
        if not isinstance(error, EOFError | ConnectionError):
            logger.error("a message of the server could not be read", exc_info=error)
        self.end()

    def _dispatch(self, received: Received) -> None:
        handler = self._handlers.get(type(received.frame))
        if handler is None:
            return
        # The lock keeps threads from falling asleep after the delivery and before the wakeups.
        with self._lock:
            self.message_count += 1
            waiter = handler(received)
            wakeups = (
                self._sleepers.pop(waiter, ()) if self._sleepers and waiter is not None else ()
            )
        for wakeup in wakeups:
            wakeup.release()
        if waiter is not None:
            waiter.on_delivered()

    def _receive(self) -> Received:
        received = self._channel.receive()
        assert received is not None, "the socket blocks"
        return received

    def _wake_next_reader(self) -> None:
        """Wake a thread to become the reader, if there is none and a thread waits."""
        with self._lock:
            if self._has_reader or self._next_reader is not None:
                return
            candidates = [waiter for waiter in self._sleepers if not waiter.is_low_priority]
            if candidates:
                self._next_reader = self.jobs if self.jobs in candidates else candidates[0]
                wakeups = self._sleepers[self._next_reader]
                woken = [wakeups.pop()]
                if not wakeups:
                    del self._sleepers[self._next_reader]
            else:
                woken = [each for it in self._resting for each in self._sleepers.pop(it, ())]
                self._resting.clear()
        for wakeup in woken:
            wakeup.release()


class LoopReader(Waiter):
    """What waits for messages while its thread does something else, and the helper thread.

    These are calls that event loops of this process wait for, and responses for slow clients.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self.own_thread = 0  # the thread of the instance's loop
        self.mailbox = mailbox
        self._main_calls: dict[Waiter, None] = {}  # the model's thread reads their replies
        self._helper_calls: dict[Waiter, None] = {}  # the helper thread reads their replies
        self._is_checking = False
        self._helper_wakeup = threading.Event()
        self._helper: threading.Thread | None = None

    def add(self, call: Waiter) -> None:
        """Read messages for a call, or for what else waits for them, until `remove`."""
        if threading.get_ident() != self.own_thread:
            self._helper_calls[call] = None
            self._wake_helper()
            return
        self._main_calls[call] = None
        if not self._is_checking:
            self._is_checking = True
            loop = asyncio.get_running_loop()
            loop.call_later(
                BUSY_TIMEOUT_S, self._check_main_thread, loop, self.mailbox.message_count
            )

    def remove(self, call: Waiter) -> None:
        """Stop to read messages for a call."""
        self._main_calls.pop(call, None)
        self._helper_calls.pop(call, None)

    def is_satisfied(self) -> bool:
        """Returns whether the helper may stop."""
        return not self._helper_calls

    def __repr__(self) -> str:
        return f"<LoopReader main={len(self._main_calls)} helper={len(self._helper_calls)}>"

    def _check_main_thread(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        """Pass calls to the helper if the model's thread has not read for a while."""
        mailbox = self.mailbox
        is_quiet = mailbox.has_no_reader and mailbox.message_count == count
        if self._main_calls and is_quiet:
            self._helper_calls |= self._main_calls
            self._main_calls = {}
            self._wake_helper()
        self._is_checking = bool(self._main_calls)
        if self._is_checking:
            loop.call_later(BUSY_TIMEOUT_S, self._check_main_thread, loop, mailbox.message_count)

    def _wake_helper(self) -> None:
        self._helper_wakeup.set()
        if self._helper is None:
            self._helper = threading.Thread(target=self._run, name="pytriton-reader", daemon=True)
            self._helper.start()

    def _run(self) -> None:
        while True:
            self._helper_wakeup.wait()
            self._helper_wakeup.clear()
            try:
                self.mailbox.wait(self)
            except EOFError:
                for call in [*self._helper_calls, *self._main_calls]:
                    call.on_delivered()
                return
