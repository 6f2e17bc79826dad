# SPDX-License-Identifier: Apache-2.0
"""A batch in a model's hands: which of its requests are open, cancelled, or wait for their client.

Requests hold it and it holds none of them, so that their arrays go when the model drops them.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

from pytriton.pb_utils.failures import TritonModelException
from pytriton.python_backend.answers import SENDER_CLOSED, make_item
from pytriton.python_backend.mailbox import Waiter
from pytriton.transport.credit import CreditWindow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytriton.pb_utils.response import InferenceResponse
    from pytriton.python_backend.mailbox import Mailbox
    from pytriton.transport.channel import Payload, Received
    from pytriton.transport.frames import Cancel, Credit, Execute, ResponseItem
    from pytriton.transport.response_outbox import ResponseOutbox


class ResponseWindow(CreditWindow, Waiter):
    """The credit of one request, for which senders wait."""

    __slots__ = ("_is_cancelled",)

    def __init__(self) -> None:
        super().__init__()
        self._is_cancelled = False

    def has_news(self) -> bool:
        """Whether another response may be sent."""
        return self._is_cancelled or self.is_open

    def cancel(self) -> None:
        """Nobody takes responses any more, so none waits for that."""
        self._is_cancelled = True


class ModelRuns:
    """What the batches of an instance have in common, and those that are open."""

    def __init__(
        self,
        outbox: ResponseOutbox,
        mailbox: Mailbox,
        output_names: Sequence[str],
        *,
        is_decoupled: bool,
        is_batching: bool,
    ) -> None:
        self.outbox = outbox
        self.mailbox = mailbox
        self.output_names = output_names
        self.is_decoupled = is_decoupled
        self.is_batching = is_batching
        self.open: dict[int, BatchRun] = {}
        self.loop_thread = 0  # which runs coroutines and must not wait for a client
        self.is_here = True  # false in processes that the model forked

    def set_loop_thread(self, thread: int) -> None:
        """Coroutines run on this thread."""
        self.loop_thread = thread

    def leave(self) -> None:
        """This is a process that the model forked: requests are the parent's."""
        self.is_here = False

    def on_cancel(self, received: Received) -> Waiter | None:
        """Nobody waits for a request any more."""
        frame: Cancel = received.frame  # type: ignore[assignment]  # registered for these only
        run = self.open.get(frame.batch)
        return None if run is None else run.cancel(frame.position)

    def on_credit(self, received: Received) -> Waiter | None:
        """A client took responses."""
        frame: Credit = received.frame  # type: ignore[assignment]  # registered for these only
        run = self.open.get(frame.batch)
        return None if run is None else run.credit(frame.position, frame.count)


class BatchRun:
    """One batch, from its arrival to the last response to its requests."""

    __slots__ = (
        "_cancelled", "_closed", "_is_ended", "_is_returned", "_runs", "_windows", "execute",
        "started_ns",
    )  # fmt: skip

    def __init__(self, runs: ModelRuns, execute: Execute, started_ns: int) -> None:
        self.execute = execute
        self.started_ns = started_ns
        self._runs = runs
        self._cancelled: set[int] = set()
        self._closed: set[int] = set()
        self._windows: dict[int, ResponseWindow] = {}
        self._is_returned = False
        self._is_ended = False
        runs.open[execute.batch] = self

    @property
    def is_returned(self) -> bool:
        """Whether the server was told that `execute` returned."""
        return self._is_returned

    @property
    def open_positions(self) -> list[int]:
        """The requests that wait for a last response."""
        if self._is_ended:
            return []
        return [position for position in range(len(self.execute.rows)) if self.is_open(position)]

    def is_open(self, position: int) -> bool:
        """Whether a request waits for its last response."""
        return not self._is_ended and position not in self._closed

    def names(self, position: int) -> Collection[str]:
        """The outputs that a request's client asked for."""
        return self.execute.outputs.get(position, self._runs.output_names)

    def end(self) -> None:
        """All requests are answered."""
        self._is_ended = True
        self._runs.open.pop(self.execute.batch, None)

    def return_(self, answered: Iterable[int] = ()) -> None:
        """`execute` returned and answered some; others may still be answered by senders."""
        self._closed.update(answered)
        self._is_returned = True
        self._end_if_answered()

    def send(self, position: int, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Send a response or the end; waits for the client of a decoupled model to take more."""
        runs = self._runs
        if not runs.is_here:
            raise TritonModelException(
                "Responses are sent by the process that runs the model, not by one it forked."
            )
        if not self.is_open(position):
            raise TritonModelException(SENDER_CLOSED)
        window = None
        is_first = False
        if response is not None and runs.is_decoupled:
            window = self._window(position)
            is_first = not window.has_sent
            if not window.has_news():
                self._wait_for_client(window)
        make = functools.partial(self._make_item, position, response, window, is_final)
        runs.outbox.respond(make, self.started_ns, at_once=is_final or is_first)
        if is_final:
            self._closed.add(position)
            if self._is_returned:
                self._end_if_answered()

    def is_cancelled(self, position: int) -> bool:
        """Whether nobody waits for a request's responses any more."""
        if position in self._cancelled:
            return True
        if self._runs.is_here:
            self._runs.mailbox.read_what_is_there()
        return position in self._cancelled

    def cancel(self, position: int) -> Waiter | None:
        """The client went away."""
        self._cancelled.add(position)
        window = self._windows.get(position)
        if window is not None:
            window.cancel()
        return window

    def credit(self, position: int, count: int) -> Waiter | None:
        """The client took responses."""
        window = self._windows.get(position)
        if window is not None:
            window.add(count)
        return window

    def _window(self, position: int) -> ResponseWindow:
        window = self._windows.get(position)
        if window is None:
            window = ResponseWindow()
            self._windows[position] = window
            if position in self._cancelled:  # looked at last: it may be said meanwhile
                window.cancel()
        return window

    def _wait_for_client(self, window: ResponseWindow) -> None:
        self._runs.outbox.flush()
        # Coroutines share a thread: those of other clients would wait, too.
        if threading.get_ident() != self._runs.loop_thread:
            self._runs.mailbox.wait(window)

    def _make_item(
        self,
        position: int,
        response: InferenceResponse | None,
        window: ResponseWindow | None,
        is_final: bool,
        payload: Payload,
    ) -> ResponseItem:
        batch = self.execute.batch
        item = make_item(
            payload, batch, position, response, self.names(position), is_final=is_final
        )
        if window is not None:
            window.spend(sum([ref.size for ref in item.outputs or ()]))
        return item

    def _end_if_answered(self) -> None:
        if len(self._closed) == len(self.execute.rows):
            self.end()


class RunContext:
    """One request of a run, as its `InferenceRequest` and its sender see it."""

    __slots__ = ("_position", "_run")

    def __init__(self, run: BatchRun, position: int) -> None:
        self._run = run
        self._position = position

    def send(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        """See `BatchRun.send`."""
        self._run.send(self._position, response, is_final=is_final)

    def is_cancelled(self) -> bool:
        """See `BatchRun.is_cancelled`."""
        return self._run.is_cancelled(self._position)
