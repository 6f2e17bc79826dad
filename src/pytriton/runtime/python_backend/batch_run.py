# SPDX-License-Identifier: Apache-2.0
"""The state of a batch while a `model.py` executes it: open and cancelled requests.

Requests refer to their batch, but the batch does not refer to its requests, so their arrays are
freed when the model drops them.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

from pytriton.base.errors import ServerError
from pytriton.runtime.pb_utils.failures import TritonError, TritonModelException
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.python_backend.answers import SENDER_CLOSED, copied, make_item, pack_small
from pytriton.runtime.python_backend.device_tensors import DeviceTensors
from pytriton.runtime.python_backend.flow_control import (
    OpenBatches,
    QueuedResponse,
    ResponseWindows,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytriton.runtime.python_backend.flow_control import ResponseWindow
    from pytriton.runtime.python_backend.mailbox import LoopReader
    from pytriton.runtime.transport.channel import Payload
    from pytriton.runtime.transport.frames import Execute, ResponseItem
    from pytriton.runtime.transport.response_outbox import ResponseOutbox
    from pytriton.runtime.transport.response_rows import Structure


class BatchRegistry(OpenBatches["BatchRun"]):
    """The open batches of an instance, and their common settings."""

    def __init__(
        self,
        outbox: ResponseOutbox,
        reader: LoopReader,
        output_names: Sequence[str],
        *,
        is_decoupled: bool,
        is_batching: bool,
        device: DeviceTensors | None = None,
    ) -> None:
        super().__init__(outbox, reader)
        self.device = device or DeviceTensors(keeps_on_device=False)
        self.output_names = output_names
        self.is_decoupled = is_decoupled
        self.is_batching = is_batching
        self.is_model_process = True  # False in processes that the model forked

    def on_fork(self) -> None:
        """Mark this as a process that the model forked: only its parent may respond."""
        self.is_model_process = False


class BatchRun(ResponseWindows):
    """One batch, from its arrival to the last response to its requests."""

    __slots__ = ("_closed", "_is_ended", "_runs", "has_device")

    def __init__(self, runs: BatchRegistry, execute: Execute, started_ns: int) -> None:
        super().__init__(execute, started_ns)
        # Some outputs may belong into GPU memory.
        self.has_device = bool(execute.devices or execute.device_wishes)
        self._runs = runs
        self._closed: set[int] = set()
        self._is_ended = False
        runs.begin(self)

    @property
    def batches(self) -> BatchRegistry:
        """See `ResponseWindows`."""
        return self._runs

    @property
    def is_over(self) -> bool:
        """See `ResponseWindows`."""
        return self._is_ended

    @property
    def is_decoupled(self) -> bool:
        """See `RequestBatch`."""
        return self._runs.is_decoupled

    def context(self, position: int) -> RunContext:
        """See `RequestBatch`."""
        return RunContext(self, position)

    @property
    def open_positions(self) -> list[int]:
        """The positions of the requests that wait for their final response."""
        if self._is_ended:
            return []
        return [position for position in range(len(self.execute.rows)) if self.is_open(position)]

    def is_open(self, position: int) -> bool:
        """See `ResponseWindows`."""
        return not self._is_ended and position not in self._closed

    def mark_closed(self, position: int) -> None:
        """See `ResponseWindows`."""
        self._closed.add(position)

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
        self.leave()

    def mark_returned(self, answered: Iterable[int] = ()) -> None:
        """Mark `execute` as returned and some requests as answered; senders may do the rest."""
        self._closed.update(answered)
        self.is_returned = True
        self._end_if_answered()

    def send(self, position: int, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Send a response or the end; see `ResponseWindows.hold` for clients that read slowly."""
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
            if self.is_returned:
                self._end_if_answered()

    def _respond(
        self, position: int, response: InferenceResponse | None, *, is_final: bool
    ) -> None:
        runs = self._runs
        window = None
        is_first = False
        if response is not None and self.has_device:
            response = self.placed(position, response)
        if runs.is_decoupled:
            window = self._windows.get(position)
            if window is not None:
                is_closed = response is not None and not (window.is_open or window.is_cancelled)
                if (is_closed or window.queue is not None) and self.hold(
                    position,
                    window,
                    functools.partial(self._queued, position, response, window, is_final=is_final),
                    is_end=response is None,
                ):
                    return
            elif response is not None:
                window = self._window(position)
        if response is not None and window is not None:
            window.thread = threading.get_ident()
            is_first = not window.has_sent
            packed = None
            if not is_final and not self.has_device:
                packed = pack_small(response, self.names(position))
            if packed is not None:
                self._send_packed(position, window, packed, at_once=is_first)
                return
        spent = None if response is None else window
        at_once = is_final or is_first
        self._send_item(position, response, spent, is_final=is_final, at_once=at_once)

    def _send_packed(
        self,
        position: int,
        window: ResponseWindow,
        packed: tuple[Structure, list[bytes], int],
        *,
        at_once: bool = False,
    ) -> None:
        window.spend(packed[2])
        request = (self.execute.batch, position)
        self._runs.outbox.respond_small(request, *packed, self.started_ns, at_once=at_once)

    def _send_item(
        self,
        position: int,
        response: InferenceResponse | None,
        window: ResponseWindow | None,
        *,
        is_final: bool,
        at_once: bool,
    ) -> None:
        make = functools.partial(self._make_item, position, response, window, is_final)
        self._runs.outbox.respond(make, self.started_ns, at_once=at_once)

    def _queued(
        self,
        position: int,
        response: InferenceResponse | None,
        window: ResponseWindow,
        *,
        is_final: bool,
    ) -> QueuedResponse:
        """Returns a response as it is now: the model may change its tensors once it was sent."""
        size = 0
        drop = None
        if response is not None:
            window.thread = threading.get_ident()
            names = self.names(position)
            if not is_final and not self.has_device:
                packed = pack_small(response, names)
                if packed is not None:
                    send = functools.partial(self._send_packed, position, window, packed)
                    return QueuedResponse(send, None, packed[2], is_final=False)
            response, size = copied(response, names)
            if self.has_device:
                drop = functools.partial(self._runs.device.take_back_responses, [response])
        spent = None if response is None else window
        send = functools.partial(
            self._send_item, position, response, spent, is_final=is_final, at_once=is_final
        )
        return QueuedResponse(send, drop, size, is_final, is_end=response is None)

    def is_cancelled(self, position: int) -> bool:
        """Returns whether a request was cancelled."""
        if position in self._cancelled:
            return True
        if self._runs.is_model_process:
            self._runs.mailbox.read_available()
        return position in self._cancelled

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
