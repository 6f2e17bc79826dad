# SPDX-License-Identifier: Apache-2.0
"""Calls other models, from any thread of the process."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytriton.base.errors import ErrorCode, ServerError
from pytriton.runtime.pb_utils.response import InferenceResponse, TritonError
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend.answers import add_tensor
from pytriton.runtime.python_backend.mailbox import Inbox, Waiter
from pytriton.runtime.transport.credit import RESPONSE_WINDOW
from pytriton.runtime.transport.frames import CallCredit, CancelCall, InferCall, InferReply

if TYPE_CHECKING:
    from pytriton.runtime.pb_utils.request import InferenceRequest
    from pytriton.runtime.python_backend.connection import Connection
    from pytriton.runtime.transport.channel import Payload, Received

# Credit is sent for this number of consumed responses, a fraction of the server's window.
_CREDIT_STEP = RESPONSE_WINDOW // 4


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """The batch whose `execute` makes a call, and what the call blocks; see `InferCall`."""

    batch: int = 0
    blocked_batch: int = 0
    blocks_loop: bool = False


class BlsCall(Inbox):
    """A running call of another model."""

    __slots__ = (
        "_connection", "_is_abandoned", "_is_decoupled", "_number", "_uncredited", "_wake",
        "is_over",
    )  # fmt: skip

    def __init__(self, connection: Connection, *, is_decoupled: bool) -> None:
        super().__init__()
        self.is_over = False
        self._connection = connection
        self._is_decoupled = is_decoupled
        self._is_abandoned = False
        self._uncredited = 0
        self._wake: Callable[[], None] | None = None
        self._number = connection.open_call(self)

    def start(self, request: InferenceRequest, origin: CallOrigin) -> None:
        """Send the request; raises ServerError if there is no memory for its tensors."""
        try:
            self._connection.outbox.send(functools.partial(self._frame, request, origin))
        except BaseException:
            self._connection.close_call(self._number)
            raise

    def receive(self) -> InferenceResponse | None:
        """Wait for the next response; None after the last one."""
        if self.is_over:
            return None
        received = self._connection.receive(self)
        reply = received.frame
        assert isinstance(reply, InferReply)
        if reply.is_final:
            self._end()
        else:
            self._credit()
        return _response(received, reply)

    def notify(self, wake: Callable[[], None]) -> None:
        """Call `wake` once there is a response, or the connection to the server has ended."""
        self._connection.loop_reader.add(self)
        self._wake = wake
        if self.messages or self.is_over or self._connection.mailbox.is_over:
            self.on_delivered()

    def on_delivered(self) -> None:
        """Call the callback of `notify`, at most once."""
        wake, self._wake = self._wake, None
        if wake is not None:
            self._connection.loop_reader.remove(self)
            wake()

    def cancel(self) -> None:
        """Cancel the request; its end is still received."""
        if not self.is_over:
            self._connection.outbox.post(CancelCall(self._number))

    def abandon(self) -> None:
        """Drop all further responses. Takes no lock, because a finalizer may call this."""
        self._is_abandoned = True
        self._wake = None
        self._connection.loop_reader.remove(self)
        self._drop_all()

    def put(self, received: Received) -> Waiter:
        """Store a reply for `receive`."""
        self.messages.append(received)
        if self._is_abandoned:  # checked last, because another thread may set it meanwhile
            self._drop_all()
        return self

    def _drop_all(self) -> None:
        with contextlib.suppress(IndexError):  # two threads may do this
            while True:
                reply = self.messages.popleft().frame
                assert isinstance(reply, InferReply)
                if reply.is_final:
                    self._end()
                else:
                    self._credit()

    def _credit(self) -> None:
        self._uncredited += 1
        if self._uncredited >= _CREDIT_STEP and self._is_decoupled:
            self._connection.outbox.post(CallCredit(self._number, self._uncredited))
            self._uncredited = 0

    def _end(self) -> None:
        self.is_over = True
        self._connection.close_call(self._number)

    def _frame(self, request: InferenceRequest, origin: CallOrigin, payload: Payload) -> InferCall:
        return InferCall(
            self._number,
            request.model_name,
            request.model_version,
            [add_tensor(payload, tensor) for tensor in request.inputs()],
            list(request.output_names),
            request.request_id(),
            request.correlation_id(),
            request.flags(),
            request.timeout(),
            request.parameter_values or {},
            self._is_decoupled,
            origin.blocked_batch,
            request.trace_context,
            batch=origin.batch,
            blocks_loop=origin.blocks_loop,
        )


class RefusedCall:
    """A call that could not be sent; its only response is the error."""

    def __init__(self, request: InferenceRequest, error: ServerError) -> None:
        self.is_over = False
        text = f"Model {request.model_name} - Error when running inference: {error.message}"
        self._response = InferenceResponse.received([], TritonError(text, error.code), None)

    def receive(self) -> InferenceResponse | None:
        """Returns the only response, then None."""
        if self.is_over:
            return None
        self.is_over = True
        return self._response

    def notify(self, wake: Callable[[], None]) -> None:
        """Call `wake` at once: the response is there."""
        wake()

    def cancel(self) -> None:
        """Do nothing: there is no request."""

    def abandon(self) -> None:
        """Do nothing: there are no further responses."""


def _response(received: Received, reply: InferReply) -> InferenceResponse:
    failure = None
    if reply.error is not None:
        failure = TritonError(reply.error, ErrorCode(reply.error_code))
    tensors: list[Tensor] = []
    try:
        tensors = [Tensor.from_array(ref.name, received.array(ref)) for ref in reply.outputs or ()]
    except ServerError as error:  # there was no room for them
        failure = TritonError(error.message, error.code)
    return InferenceResponse.received(tensors, failure, reply.parameters)
