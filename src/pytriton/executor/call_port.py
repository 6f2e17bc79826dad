# SPDX-License-Identifier: Apache-2.0
"""What comes over a worker's channel beside answers: calls of other models and of services.

A worker has one port on its own channel, and one more for each process that it forked and that
called something.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pytriton.errors import InternalError, ServerError, sendable_text
from pytriton.executor.batch_tensors import make_tensor
from pytriton.transport.credit import RESPONSE_WINDOW
from pytriton.transport.frames import TensorRef
from pytriton.transport.worker_frames import (
    CallCredit,
    CancelCall,
    InferCall,
    InferReply,
    LogLine,
    ServiceCall,
    ServiceReply,
)

if TYPE_CHECKING:
    from pytriton.executor.worker_services import RunningCall, WorkerServices
    from pytriton.messages import InferResponse
    from pytriton.transport.channel import Received
    from pytriton.transport.loop_channel import LoopChannel

logger = logging.getLogger(__name__)


class CallPort:
    """Passes a worker's calls on to the server's services, and their answers back."""

    def __init__(self, channel: LoopChannel, services: WorkerServices) -> None:
        self._channel = channel
        self._services = services
        self._calls: dict[int, _InferenceCall] = {}
        self._is_open = True

    def take(self, received: Received) -> None:
        """Do what a frame asks for; frames that ask for nothing are no business of this port."""
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
            self._services.log(frame)

    def close(self) -> None:
        """The caller is gone: its calls are given up and nothing is sent any more."""
        self._is_open = False
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.cancel()

    def __repr__(self) -> str:
        return f"<CallPort calls={len(self._calls)} open={self._is_open}>"

    def _infer(self, received: Received, frame: InferCall) -> None:
        call = _InferenceCall(self, frame.call)
        self._calls[frame.call] = call
        inputs = {ref.name: make_tensor(received, ref) for ref in frame.inputs}
        try:
            call.running = self._services.infer(frame, inputs, call)
        except Exception as error:  # the caller waits for a reply, whatever happened
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
        except Exception as error:  # as above
            logger.exception("the service %s failed", frame.action)
            text = f"{type(error).__name__}: {error}"
        else:
            return
        if number:
            reply(None, text)

    def reply(self, number: int, response: InferResponse | None, *, is_final: bool) -> None:
        """Send a response; ServerError where there is no room for its tensors."""
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

    def forget(self, number: int) -> None:
        """A call is over."""
        self._calls.pop(number, None)


class _InferenceCall:
    """A call of another model: the sink of its responses, which holds them back when told to."""

    def __init__(self, port: CallPort, number: int) -> None:
        self.running: RunningCall | None = None
        self._port = port
        self._number = number
        self._is_over = False
        self._is_paused = False
        self._unseen = 0  # responses that the caller has not taken yet

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Take a response; None with `final` is the bare end."""
        if not self._is_over:
            self._port.reply(self._number, response, is_final=final)
            self._count_sent(final=final)

    def _count_sent(self, *, final: bool) -> None:
        if final:
            self._end()
            return
        self._unseen += 1
        if self._unseen >= RESPONSE_WINDOW and not self._is_paused and self.running is not None:
            self._is_paused = True
            self.running.pause()

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Take an error in place of a response."""
        if self._is_over:
            return
        self._port.reply_error(self._number, error, is_final=final)
        self._count_sent(final=final)

    def on_refused(self, error: ServerError) -> None:
        """Take the error of a call that was not begun."""
        self.on_error(error)

    def on_credit(self, count: int) -> None:
        """The caller took so many more responses."""
        self._unseen -= count
        if self._is_paused and self._unseen < RESPONSE_WINDOW and self.running is not None:
            self._is_paused = False
            self.running.resume()

    def cancel(self) -> None:
        """The caller gave the call up, or is gone."""
        if self.running is not None and not self._is_over:
            self.running.cancel()

    def _end(self) -> None:
        self._is_over = True
        self._port.forget(self._number)
