# SPDX-License-Identifier: Apache-2.0
"""The credit of one request's client, what waits for it, and what its senders do meanwhile."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections import deque
from typing import TYPE_CHECKING

from pytriton.runtime.backend.mailbox import Waiter
from pytriton.runtime.transport.credit import CreditWindow

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pytriton.runtime.backend.batch import WorkerBatch
    from pytriton.runtime.backend.flow_control import OpenBatches


class ResponseWindow(CreditWindow, Waiter):
    """The flow control window of one request, for which senders wait.

    Attributes:
        queue: The responses that wait for credit; None if there are none. Later ones must not
            overtake them.
        sleepers: Locks of the threads that wait until something has changed.
        thread: The thread that sent last.
    """

    __slots__ = ("_batches", "_is_cancelled", "queue", "sleepers", "thread")

    def __init__(self, batches: OpenBatches) -> None:
        super().__init__()
        self.queue: ResponseQueue | None = None
        self.sleepers: list[threading.Lock] = []
        self.thread = 0
        self._batches = batches
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        """Whether there is no client any more."""
        return self._is_cancelled

    def is_satisfied(self) -> bool:
        """Returns whether another response may be sent."""
        return self._is_cancelled or self.is_open

    def cancel(self) -> None:
        """Let senders continue: the request was cancelled, so there is no client to wait for."""
        self._is_cancelled = True

    def on_delivered(self) -> None:
        """Send what waits, and let sleeping senders look again."""
        if self.queue is not None or self.sleepers:
            self._batches.proceed(self)


@dataclasses.dataclass(slots=True)
class QueuedResponse:
    """A response that waits; nothing that the model changes later changes it.

    Attributes:
        send: Sends it.
        give_up: Tells that its tensors were not sent, if that matters to anybody.
        size: Of its tensors, in bytes.
        is_final: Whether it is the last one.
        is_end: Whether it has no tensors, so that it needs no credit.
    """

    send: Callable[[], None]
    give_up: Callable[[], None] | None
    size: int
    is_final: bool
    is_end: bool = False

    def drop(self) -> None:
        """Forget it instead of sending it."""
        if self.give_up is not None:
            self.give_up()


class ResponseQueue:
    """The responses to one request that wait for credit.

    Attributes:
        is_dead: The request was ended because too much waited: all later responses are dropped.
    """

    __slots__ = ("entries", "is_dead", "position", "run", "size")

    def __init__(self, run: WorkerBatch, position: int) -> None:
        self.run = run
        self.position = position
        self.entries: deque[QueuedResponse] = deque()
        self.size = 0
        self.is_dead = False


class SenderTurn(enum.Enum):
    """What a sender without credit has to do."""

    SEND = enum.auto()  # there is credit by now
    READ = enum.auto()  # wait for credit, and read messages meanwhile
    SLEEP = enum.auto()  # wait until something has changed
    QUEUE = enum.auto()
    DROP = enum.auto()  # the request was ended
    END = enum.auto()  # end the request for which most waits


class Others(enum.Enum):
    """Whether a thread serves other requests than the one for which it sends."""

    NONE = enum.auto()
    PERHAPS = enum.auto()  # there is a request that nobody has answered yet
    SOME = enum.auto()


def is_event_loop() -> bool:
    """Returns whether this thread runs coroutines: if it waited, all of them would."""
    loops = sys.modules.get("asyncio.events")
    return loops is not None and loops._get_running_loop() is not None  # noqa: SLF001  documented
