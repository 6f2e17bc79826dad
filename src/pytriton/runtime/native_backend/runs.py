# SPDX-License-Identifier: Apache-2.0
"""The state of a batch while a backend works on it: which requests are open, cancelled, in credit.

A backend may answer from threads of its own, also after its execute function has returned.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.python_backend.batch_run import OpenBatches, ResponseWindows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.runtime.native_backend.outputs import OutputLane
    from pytriton.runtime.python_backend.batch_run import ResponseWindow
    from pytriton.runtime.python_backend.mailbox import Mailbox
    from pytriton.runtime.transport.channel import Payload
    from pytriton.runtime.transport.frames import Execute, ResponseItem
    from pytriton.runtime.transport.response_outbox import ResponseOutbox

    MakeItem = Callable[[Payload], ResponseItem]


class BatchRuns(OpenBatches["BatchRun"]):
    """The batches of an instance with requests that are not answered."""

    def __init__(
        self, outbox: ResponseOutbox, mailbox: Mailbox, *, is_decoupled: bool, is_batching: bool
    ) -> None:
        super().__init__()
        self.outbox = outbox
        self.mailbox = mailbox
        self.is_decoupled = is_decoupled
        self.is_batching = is_batching

    def cancel_all(self) -> None:
        """Let threads that wait for clients continue, because the instance ends."""
        for run in list(self.open.values()):
            for position in range(len(run.execute.rows)):
                run.cancel(position)


class BatchRun(ResponseWindows):
    """One batch, from its arrival to the last response to its requests.

    Attributes:
        execute: The message with the batch.
        started_ns: When it came.
        is_returned: Whether the backend's function has returned.
        is_collecting: Whether answers wait for that, so as to be sent in one message.
        thread: The thread that calls the backend's function.
        lanes: The outputs of the batch, while answers are collected.
        lock: Protects the two above, and what threads may change about the requests of the batch.
    """

    __slots__ = (
        "_open", "_runs", "execute", "is_collecting", "is_decoupled", "is_returned", "lanes",
        "lock", "outbox", "row_count", "row_starts", "started_ns", "thread",
    )  # fmt: skip

    def __init__(self, runs: BatchRuns, execute: Execute) -> None:
        super().__init__()
        self.execute = execute
        self.outbox = runs.outbox
        self.started_ns = time.monotonic_ns()
        self.is_decoupled = runs.is_decoupled
        self.is_collecting = not runs.is_decoupled
        self.is_returned = False
        self.lock = threading.Lock()
        self.thread = threading.get_ident()
        self.lanes: dict[str, OutputLane] = {}
        self._runs = runs
        self._open = set(range(len(execute.rows)))
        self.row_starts, self.row_count = _starts(execute.rows if runs.is_batching else [1])
        runs.open[execute.batch] = self

    def is_open(self, position: int) -> bool:
        """Returns whether a request waits for its final response."""
        return position in self._open

    def close(self, positions: Sequence[int]) -> None:
        """Mark requests as answered."""
        with self.lock:
            self._open.difference_update(positions)
            if self.is_returned and not self._open:
                self._runs.open.pop(self.execute.batch, None)

    def mark_returned(self) -> None:
        """Mark the backend's function as returned; the caller has the lock.

        From now on, the threads of the backend answer by themselves.
        """
        self.is_returned = True
        self.is_collecting = False

    def send(
        self, position: int, make: MakeItem, *, is_final: bool, has_tensors: bool = True
    ) -> None:
        """Send a response, or an end without one; a response waits until its client can take it.

        Raises:
            InvalidArgumentError: The final response was sent before.
            OSError: The server has ended.
        """
        if position not in self._open:
            raise InvalidArgumentError(ALREADY_ANSWERED)
        window = None
        is_first = False
        if has_tensors and self.is_decoupled:
            window = self._window(position)
            is_first = not window.has_sent
            if not window.is_satisfied():
                self.outbox.flush()
                self._runs.mailbox.wait(window)
        counted = functools.partial(_make_counted, make, window)
        self.outbox.respond(counted, self.started_ns, at_once=is_final or is_first)
        if is_final:
            self.close((position,))

    def is_cancelled(self, position: int) -> bool:
        """Returns whether a request was cancelled."""
        if position not in self._cancelled:
            self._runs.mailbox.read_available()
        return position in self._cancelled


ALREADY_ANSWERED = "the final response to this request was sent already"


def _starts(rows: Sequence[int]) -> tuple[list[int], int]:
    """Returns the number of rows before each request, and that of all."""
    starts, at = [], 0
    for count in rows:
        starts.append(at)
        at += count
    return starts, at


def _make_counted(make: MakeItem, window: ResponseWindow | None, payload: Payload) -> ResponseItem:
    item = make(payload)
    if window is not None:
        window.spend(sum([ref.size for ref in item.outputs or ()]))
    return item
