# SPDX-License-Identifier: Apache-2.0
"""Reads a channel for all threads of a process: whoever waits first reads for everybody.

There is no thread between the socket and `execute`. A thread that waits for something becomes the
reader if nobody is, and hands each message to whom it is for; the others sleep until theirs came or
until the reader has what it waited for, when one of them reads on. The model's thread is preferred:
another reader gives way to it after the next message.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pytriton.transport.arena import IDLE_SECONDS
from pytriton.transport.idle_reader import IdleReader

if TYPE_CHECKING:
    from pytriton.transport.channel import Received
    from pytriton.transport.response_outbox import ResponseOutbox

logger = logging.getLogger(__name__)

# How long the model's thread must have been busy before a patient waiter reads in its place.
PATIENCE_S = 0.1


class Waiter:
    """Something that threads wait for in a mailbox."""

    __slots__ = ()
    is_patient = False  # can wait for its news a little, so as not to take the reader's place

    def has_news(self) -> bool:
        """Whether what is waited for is there."""
        raise NotImplementedError

    def tell(self) -> None:
        """News came; runs on the thread that reads, after all threads were woken."""


class Inbox(Waiter):
    """Waits for messages."""

    __slots__ = ("is_patient", "messages")

    def __init__(self, *, is_patient: bool = False) -> None:
        self.is_patient = is_patient
        self.messages: deque[Received] = deque()

    def take(self, received: Received) -> Waiter:
        """Keep a message until somebody asks for it."""
        self.messages.append(received)
        return self

    def has_news(self) -> bool:
        """Whether there is a message."""
        return bool(self.messages)


# Takes a message and tells whom it was for; runs on the thread that reads, and must be quick.
Handler = Callable[["Received"], Waiter | None]


class Mailbox:
    """The reading end of a channel. `jobs` is what the model's thread waits for."""

    def __init__(self, outbox: ResponseOutbox, handlers: Mapping[type, Handler]) -> None:
        self.jobs = Inbox()
        self._channel = outbox.channel
        self._handlers = handlers
        self._lock = threading.Lock()
        self._has_reader = False
        # Was woken to become the reader but has not taken over yet.
        self._next_reader: Waiter | None = None
        self._is_over = False
        self._count = 0  # of messages so far
        self._sleepers: dict[Waiter, list[threading.Lock]] = {}
        self._idle_reader = IdleReader(
            outbox.channel, lambda: outbox.uses_memory, lambda: outbox.trim(IDLE_SECONDS)
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing is read any more."""
        return self._is_over

    @property
    def is_unattended(self) -> bool:
        """Whether nobody reads now, nor is about to."""
        return not self._has_reader and self._next_reader is None

    @property
    def count(self) -> int:
        """How many messages were read so far."""
        return self._count

    def wait(self, waiter: Waiter) -> None:
        """Return once the waiter has news; EOFError when the server is gone."""
        while not waiter.has_news():
            with self._lock:
                if waiter.has_news():
                    break
                if self._is_over:
                    raise EOFError
                gate = None if self._become_reader(waiter) else self._sleep(waiter)
            if gate is None:
                self._read_for(waiter)
            elif waiter.is_patient:
                self._doze(waiter, gate)
            else:
                gate.acquire()
        if self._next_reader is waiter:  # it was woken to read, and need not any more
            self._next_reader = None
            self._wake_successor()

    def read_what_is_there(self) -> None:
        """Take the messages that came, without waiting; somebody who reads does that anyway."""
        with self._lock:
            if self._has_reader or self._is_over:
                return
            self._has_reader = True
        try:
            while (received := self._channel.receive(socket.MSG_DONTWAIT)) is not None:
                self._hand_out(received)
        except Exception as error:  # noqa: BLE001  it is logged unless the server is gone
            self._give_up(error)
        finally:
            with self._lock:
                self._has_reader = False
            self._wake_successor()

    def end(self) -> None:
        """Nothing is read any more: whoever waits is told so."""
        with self._lock:
            self._is_over = True
            gates = [gate for gates in self._sleepers.values() for gate in gates]
            self._sleepers.clear()
        for gate in gates:
            gate.release()

    def _become_reader(self, waiter: Waiter) -> bool:
        is_next = self._next_reader is waiter
        if is_next:
            self._next_reader = None
        if self._has_reader or waiter.is_patient:
            return False
        has_right = is_next or waiter is self.jobs
        if not has_right and (self._next_reader is not None or self.jobs in self._sleepers):
            return False
        self._has_reader = True
        return True

    def _sleep(self, waiter: Waiter) -> threading.Lock:
        gate = threading.Lock()
        gate.acquire()
        self._sleepers.setdefault(waiter, []).append(gate)
        return gate

    def _doze(self, waiter: Waiter, gate: threading.Lock) -> None:
        """Sleep, but read if nobody did for a while: the model's thread is busy for long."""
        count = self._count
        while not gate.acquire(timeout=PATIENCE_S):
            with self._lock:
                is_quiet = (
                    count == self._count and not self._has_reader and self._next_reader is None
                )
                count = self._count
                if is_quiet and not self._is_over:
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
                gives_way = not is_main and self.jobs in self._sleepers
                self._hand_out(received)
                del received
                if gives_way or waiter.has_news():
                    return
        except Exception as error:
            self._give_up(error)
            raise EOFError from error
        finally:
            with self._lock:
                self._has_reader = False
                has_sleepers = bool(self._sleepers)
            if has_sleepers:
                self._wake_successor()

    def _give_up(self, error: Exception) -> None:
        """End: the server is gone, or somebody would wait for ever for what could not be read."""
        if not isinstance(error, EOFError | ConnectionError):
            logger.error("a message of the server could not be read", exc_info=error)
        self.end()

    def _hand_out(self, received: Received) -> None:
        handler = self._handlers.get(type(received.frame))
        if handler is None:
            return
        # So that nobody goes to sleep between the news and the look for sleepers.
        with self._lock:
            self._count += 1
            waiter = handler(received)
            gates = self._sleepers.pop(waiter, ()) if self._sleepers and waiter is not None else ()
        for gate in gates:
            gate.release()
        if waiter is not None:
            waiter.tell()

    def _receive(self) -> Received:
        received = self._channel.receive()
        assert received is not None, "the socket blocks"
        return received

    def _wake_successor(self) -> None:
        """Have somebody read if nobody does, and if somebody waits."""
        with self._lock:
            if self._has_reader or self._next_reader is not None:
                return
            candidates = [waiter for waiter in self._sleepers if not waiter.is_patient]
            if not candidates:
                return
            self._next_reader = self.jobs if self.jobs in candidates else candidates[0]
            gates = self._sleepers[self._next_reader]
            gate = gates.pop()
            if not gates:
                del self._sleepers[self._next_reader]
        gate.release()
