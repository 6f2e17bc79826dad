# SPDX-License-Identifier: Apache-2.0
"""The state of a batch while a model executes it: open and cancelled requests, flow control.

Batches of a `model.py` and of a compiled backend share the flow control; what else they are
differs. Requests refer to their batch, but the batch does not refer to its requests, so their
arrays are freed when the model drops them.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from pytriton.base.errors import ServerError
from pytriton.runtime.pb_utils.failures import TritonError, TritonModelException
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.python_backend.answers import SENDER_CLOSED, make_item, pack_small
from pytriton.runtime.python_backend.device_tensors import DeviceTensors
from pytriton.runtime.python_backend.mailbox import Waiter
from pytriton.runtime.transport.credit import CreditWindow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytriton.runtime.python_backend.mailbox import Mailbox
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.frames import Cancel, Credit, Execute, ResponseItem
    from pytriton.runtime.transport.response_outbox import ResponseOutbox


class ResponseWindow(CreditWindow, Waiter):
    """The flow control window of one request, for which senders wait."""

    __slots__ = ("_is_cancelled",)

    def __init__(self) -> None:
        super().__init__()
        self._is_cancelled = False

    def is_satisfied(self) -> bool:
        """Returns whether another response may be sent."""
        return self._is_cancelled or self.is_open

    def cancel(self) -> None:
        """Let senders continue: the request was cancelled, so there is no client to wait for."""
        self._is_cancelled = True


class ResponseWindows:
    """The windows of a batch, and which of its requests were cancelled, by their positions."""

    __slots__ = ("_cancelled", "_windows")

    def __init__(self) -> None:
        self._cancelled: set[int] = set()
        self._windows: dict[int, ResponseWindow] = {}

    def cancel(self, position: int) -> Waiter | None:
        """Mark a request as cancelled; returns its window, for which senders may wait."""
        self._cancelled.add(position)
        window = self._windows.get(position)
        if window is not None:
            window.cancel()
        return window

    def credit(self, position: int, count: int) -> Waiter | None:
        """Add credit to a request; returns its window, for which senders may wait."""
        window = self._windows.get(position)
        if window is not None:
            window.add(count)
        return window

    def _window(self, position: int) -> ResponseWindow:
        window = self._windows.get(position)
        if window is None:
            window = self._windows[position] = ResponseWindow()
            if position in self._cancelled:  # checked last: another thread may cancel meanwhile
                window.cancel()
        return window


Batch = TypeVar("Batch", bound=ResponseWindows)


class OpenBatches(Generic[Batch]):
    """The open batches of an instance, by their numbers."""

    def __init__(self) -> None:
        self.open: dict[int, Batch] = {}

    def on_cancel(self, received: Received) -> Waiter | None:
        """Mark a request as cancelled."""
        frame: Cancel = received.frame  # type: ignore[assignment]  # registered for these only
        batch = self.open.get(frame.batch)
        return None if batch is None else batch.cancel(frame.position)

    def on_credit(self, received: Received) -> Waiter | None:
        """Add credit for the responses that a client has consumed."""
        frame: Credit = received.frame  # type: ignore[assignment]  # registered for these only
        batch = self.open.get(frame.batch)
        return None if batch is None else batch.credit(frame.position, frame.count)


class BatchRegistry(OpenBatches["BatchRun"]):
    """The open batches of an instance, and their common settings."""

    def __init__(
        self,
        outbox: ResponseOutbox,
        mailbox: Mailbox,
        output_names: Sequence[str],
        *,
        is_decoupled: bool,
        is_batching: bool,
        device: DeviceTensors | None = None,
    ) -> None:
        super().__init__()
        self.device = device or DeviceTensors(keeps_on_device=False)
        self.outbox = outbox
        self.mailbox = mailbox
        self.output_names = output_names
        self.is_decoupled = is_decoupled
        self.is_batching = is_batching
        self.loop_thread = 0  # runs coroutines and must not wait for a client
        self.is_model_process = True  # False in processes that the model forked

    def set_loop_thread(self, thread: int) -> None:
        """Set the thread that runs coroutines."""
        self.loop_thread = thread

    def on_fork(self) -> None:
        """Mark this as a process that the model forked: only its parent may respond."""
        self.is_model_process = False


class BatchRun(ResponseWindows):
    """One batch, from its arrival to the last response to its requests."""

    __slots__ = (
        "_closed", "_is_ended", "_is_returned", "_runs", "execute", "has_device", "started_ns",
    )  # fmt: skip

    def __init__(self, runs: BatchRegistry, execute: Execute, started_ns: int) -> None:
        super().__init__()
        self.execute = execute
        self.started_ns = started_ns
        # Some outputs may belong into GPU memory.
        self.has_device = bool(execute.devices or execute.device_wishes)
        self._runs = runs
        self._closed: set[int] = set()
        self._is_returned = False
        self._is_ended = False
        runs.open[execute.batch] = self

    @property
    def is_decoupled(self) -> bool:
        """See `RequestBatch`."""
        return self._runs.is_decoupled

    def context(self, position: int) -> RunContext:
        """See `RequestBatch`."""
        return RunContext(self, position)

    @property
    def is_returned(self) -> bool:
        """Whether the server was notified that `execute` returned."""
        return self._is_returned

    @property
    def open_positions(self) -> list[int]:
        """The positions of the requests that wait for their final response."""
        if self._is_ended:
            return []
        return [position for position in range(len(self.execute.rows)) if self.is_open(position)]

    def is_open(self, position: int) -> bool:
        """Returns whether a request waits for its final response."""
        return not self._is_ended and position not in self._closed

    def names(self, position: int) -> Collection[str]:
        """Returns the outputs that a request's client wants."""
        return self.execute.outputs.get(position, self._runs.output_names)

    def placed(self, position: int, response: InferenceResponse) -> InferenceResponse:
        """Leave outputs in GPU memory that belong there; returns the response without their bytes.

        They are written to memory of the client, or stay where they are for another model.
        """
        names = self.names(position)
        device = self.execute.devices.get(position)
        if device is not None:
            response = self._runs.device.place(response, names, device)
        wish = self.execute.device_wishes.get(position)
        if wish is not None:
            response = self._runs.device.share_outputs(response, names, wish)
        return response

    def end(self) -> None:
        """Mark all requests as answered."""
        self._is_ended = True
        self._runs.open.pop(self.execute.batch, None)

    def mark_returned(self, answered: Iterable[int] = ()) -> None:
        """Mark `execute` as returned and some requests as answered; senders may do the rest."""
        self._closed.update(answered)
        self._is_returned = True
        self._end_if_answered()

    def send(self, position: int, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Send a response or the end. A decoupled model waits until its client can take more."""
        runs = self._runs
        if not runs.is_model_process:
            raise TritonModelException(
                "Responses are sent by the process that runs the model, not by one it forked."
            )
        if not self.is_open(position):
            raise TritonModelException(SENDER_CLOSED)
        try:
            self._respond(position, response, is_final=is_final)
        except ServerError as error:
            # There is no room, or the driver has failed. That is not the model's doing, and its
            # sender may be closed, so nobody else would answer.
            failure = TritonError(error.message, error.code)
            failed = InferenceResponse.received([], failure, None)
            self._respond(position, failed, is_final=is_final)
        if is_final:
            self._closed.add(position)
            if self._is_returned:
                self._end_if_answered()

    def _respond(
        self, position: int, response: InferenceResponse | None, *, is_final: bool
    ) -> None:
        runs = self._runs
        window = None
        is_first = False
        if response is not None and self.has_device:
            response = self.placed(position, response)
        if response is not None and runs.is_decoupled:
            window = self._windows.get(position) or self._window(position)
            is_first = not window.has_sent
            if not window.is_open and not window.is_satisfied():
                self._wait_for_client(window)
            packed = None
            if not is_final and not self.has_device:
                packed = pack_small(response, self.names(position))
            if packed is not None:
                window.spend(packed[2])
                request = (self.execute.batch, position)
                runs.outbox.respond_small(request, *packed, self.started_ns, at_once=is_first)
                return
        make = functools.partial(self._make_item, position, response, window, is_final)
        runs.outbox.respond(make, self.started_ns, at_once=is_final or is_first)

    def is_cancelled(self, position: int) -> bool:
        """Returns whether a request was cancelled."""
        if position in self._cancelled:
            return True
        if self._runs.is_model_process:
            self._runs.mailbox.read_available()
        return position in self._cancelled

    def _wait_for_client(self, window: ResponseWindow) -> None:
        self._runs.outbox.flush()
        # Coroutines share a thread: waiting would also delay those of other clients.
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
        has_shared = bool(self.execute.device_wishes)
        try:
            item = make_item(
                payload,
                batch,
                position,
                response,
                self.names(position),
                is_final=is_final,
                has_shared=has_shared,
            )
        except BaseException:
            if has_shared:
                self._runs.device.take_back_responses([response])
            raise
        if window is not None:
            window.spend(sum([ref.size for ref in item.outputs or ()]))
        return item

    def _end_if_answered(self) -> None:
        if len(self._closed) == len(self.execute.rows):
            self.end()


class RunContext:
    """One request of a batch, as its `InferenceRequest` and its sender see it."""

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
