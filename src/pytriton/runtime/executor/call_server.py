# SPDX-License-Identifier: Apache-2.0
"""Serves the calls that a worker makes over its channel: of other models and of services.

A worker has one call server for its own channel, and one for each process that it forked and that
has made a call.
"""

from __future__ import annotations

import logging
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InternalError, ServerError, error_for_clients, sendable_text
from pytriton.runtime.executor.batch_tensors import make_tensor
from pytriton.runtime.transport.credit import RESPONSE_WINDOW
from pytriton.runtime.transport.frames import (
    CallCredit,
    CancelCall,
    InferCall,
    InferReply,
    LogLine,
    ServiceCall,
    ServiceReply,
    TensorRef,
)

if TYPE_CHECKING:
    from pytriton.base.messages import InferResponse
    from pytriton.runtime.executor.worker_services import RunningCall, WorkerServices
    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.loop_channel import LoopChannel

logger = logging.getLogger(__name__)


class CallServer:
    """Passes a worker's calls to the services of the server, and sends back the replies.

    Args:
        channel: The channel to the worker.
        services: Executes the calls.
        origin: Says in the log where lines of this worker come from, such as `Add_0_1@node-7`; ""
            for a worker on this machine, whose lines name a file only.
    """

    def __init__(self, channel: LoopChannel, services: WorkerServices, origin: str = "") -> None:
        self._channel = channel
        self._services = services
        self._origin = origin
        self._calls: dict[int, _InferenceCall] = {}
        self._is_open = True

    def handle(self, received: Received) -> None:
        """Execute the call or command in a frame; other kinds of frames are ignored."""
        frame = received.frame
        if isinstance(frame, InferCall):
            self._infer(received, frame)
        elif isinstance(frame, CancelCall):
            if (call := self._calls.get(frame.call)) is not None:
                call.cancel()
        elif isinstance(frame, CallCredit):
            if (call := self._calls.get(frame.call)) is not None:
                call.on_credit(frame.count)
        elif isinstance(frame, ServiceCall):
            self._serve(frame)
        elif isinstance(frame, LogLine):
            if self._origin:
                frame.file = _origin_of(frame, self._origin)
            self._services.log(frame)

    def close(self) -> None:
        """Cancel all calls because the caller has ended; nothing is sent afterwards."""
        self._is_open = False
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.cancel()

    def __repr__(self) -> str:
        return f"<CallServer calls={len(self._calls)} open={self._is_open}>"

    def _infer(self, received: Received, frame: InferCall) -> None:
        call = _InferenceCall(self, frame.call)
        self._calls[frame.call] = call
        try:
            inputs = {ref.name: make_tensor(received, ref) for ref in frame.inputs}
        except Exception as error:  # noqa: BLE001  see below
            reason = error_for_clients(error, f"it read a call of model {frame.model_name}")
            call.on_error(reason)
            return
        try:
            call.start(self._services.infer(frame, inputs, call))
        except Exception as error:  # whatever happened, the caller waits for a reply
            logger.exception("a call of model %s failed", frame.model_name)
            call.on_error(InternalError(f"{type(error).__name__}: {error}"))

    def _serve(self, frame: ServiceCall) -> None:
        number = frame.call

        def reply(value: Any, error: str | None) -> None:
            if self._is_open:
                text = None if error is None else sendable_text(error)
                self._channel.send(ServiceReply(number, value, text))

        try:
            self._services.serve(frame.action, frame.arguments, reply if number else None)
        except ServerError as error:
            text = error.message
        except Exception as error:  # see `_infer`
            logger.exception("the service %s failed", frame.action)
            text = f"{type(error).__name__}: {error}"
        else:
            return
        if number:
            reply(None, text)

    def reply(self, number: int, response: InferResponse | None, *, is_final: bool) -> None:
        """Send a response; raises ServerError if there is no memory for its tensors."""
        if not self._is_open:
            return
        if response is None:
            frame, payload = InferReply(number, None, is_final), None
        else:
            payload = self._channel.payload()
            refs = []
            for tensor in response.outputs:
                size = len(tensor.data)
                block, offset = payload.add((tensor.data,), size)
                refs.append(
                    TensorRef(tensor.name, tensor.dtype.number, tensor.shape, offset, size, block)
                )
            frame = InferReply(number, refs, is_final, parameters=response.parameters)
        self._channel.send(frame, payload)

    def reply_error(self, number: int, error: ServerError, *, is_final: bool) -> None:
        """Send an error in place of a response."""
        if self._is_open:
            text, code = sendable_text(error.message), int(error.code)
            self._channel.send(InferReply(number, None, is_final, text, code))

    def remove(self, number: int) -> None:
        """Remove a call that is over."""
        self._calls.pop(number, None)


def _origin_of(line: LogLine, origin: str) -> str:
    """Returns what a line has in place of its file; one that was printed has no number."""
    return f"{origin} {PurePosixPath(line.file).name}" if line.line else origin


class _InferenceCall:
    """A call of another model: the sink of its responses, with flow control."""

    def __init__(self, server: CallServer, number: int) -> None:
        self._running: RunningCall | None = None  # until the call is over
        self._server = server
        self._number = number
        self._is_over = False
        self._is_paused = False
        self._in_flight = 0  # responses that the caller has not consumed yet

    def start(self, running: RunningCall) -> None:
        """Set the inference, unless it has ended already."""
        if not self._is_over:
            self._running = running

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Send a response; None with `final` ends the call without tensors."""
        if not self._is_over:
            self._server.reply(self._number, response, is_final=final)
            self._count_sent(final=final)

    def _count_sent(self, *, final: bool) -> None:
        if final:
            self._end()
            return
        self._in_flight += 1
        if self._in_flight >= RESPONSE_WINDOW and not self._is_paused and self._running is not None:
            self._is_paused = True
            self._running.pause()

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Send an error in place of a response."""
        if self._is_over:
            return
        self._server.reply_error(self._number, error, is_final=final)
        self._count_sent(final=final)

    def on_refused(self, error: ServerError) -> None:
        """Send the error of a call that was rejected before it started."""
        self.on_error(error)

    def on_credit(self, count: int) -> None:
        """Count `count` more responses as consumed by the caller."""
        self._in_flight -= count
        if self._is_paused and self._in_flight < RESPONSE_WINDOW and self._running is not None:
            self._is_paused = False
            self._running.resume()

    def cancel(self) -> None:
        """Cancel the inference: the caller cancelled the call or has ended."""
        if self._running is not None:
            self._running.cancel()

    def _end(self) -> None:
        self._is_over = True
        self._running = None  # it refers to this object, and a cycle would keep its tensors
        self._server.remove(self._number)
