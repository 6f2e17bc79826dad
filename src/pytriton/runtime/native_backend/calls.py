# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_ServerInferAsync: requests that a backend sends to other models.

A thread of ours waits for their responses and calls the backend's functions, as long as there are
requests on their way. The server checks a request, so a refusal comes as a response.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING

from pytriton.base.dtypes import BY_NUMBER
from pytriton.base.errors import InvalidArgumentError, UnavailableError, error_from_code
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.caller_responses import CallerResponse
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.python_backend.mailbox import MessageInbox
from pytriton.runtime.transport.credit import RESPONSE_WINDOW
from pytriton.runtime.transport.frames import CallCredit, CancelCall, InferCallFrame, InferReply
from pytriton.runtime.transport.refs import TensorRef

if TYPE_CHECKING:
    from pytriton.runtime.native_backend.caller_requests import CallerRequest, CallerRequests
    from pytriton.runtime.native_backend.caller_responses import CallerResponses
    from pytriton.runtime.native_backend.server_models import CalledModels
    from pytriton.runtime.python_backend.connection import ServerConnection
    from pytriton.runtime.python_backend.runtime import WorkerRuntime
    from pytriton.runtime.transport.channel import Payload, Received

logger = logging.getLogger(__name__)

_CREDIT_STEP = RESPONSE_WINDOW // 4


class Calls:
    """The requests of the backend that are on their way.

    Args:
        runtime: Reaches the server.
        requests: The requests that the backend has made.
        responses: The responses that it has got.
        models: Knows the called models.
    """

    def __init__(
        self,
        runtime: WorkerRuntime,
        requests: CallerRequests,
        responses: CallerResponses,
        models: CalledModels,
    ) -> None:
        self._runtime = runtime
        self._requests = requests
        self._responses = responses
        self._models = models
        self._inbox = MessageInbox()
        self._open: dict[int, _OpenCall] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @export("TRITONSERVER_ServerInferAsync")
    def _infer(self, server: int, handle: int, _trace: int) -> None:
        request = self._requests.owned(handle)
        if request.allocator is None or not request.respond[0]:
            raise InvalidArgumentError("expected a request with a function for its responses")
        if not self._runtime.can_infer:
            raise UnavailableError("models can only be called while this one serves requests")
        version = self._models.find(server, request.model_name, request.version)["version"]
        connection = self._runtime.connection
        number = connection.open_call(self._inbox)
        call = _OpenCall(number, request, version, connection, self._runtime.current_batch)
        with self._changed:
            self._open[number] = call
            request.sent, request.was_sent, request.is_cancelled = call, True, False
            try:
                connection.outbox.send(call.frame)
            except BaseException:
                request.sent = None
                self._remove(call)
                raise
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="pytriton-calls", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _remove(self, call: _OpenCall) -> None:
        call.connection.close_call(call.number)
        del self._open[call.number]

    # On the thread of ours

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._open:
                    self._changed.wait()
            try:
                received = self._runtime.connection.receive(self._inbox)
            except TritonModelException:  # the server has ended, and so will this process
                return
            try:
                self._deliver(received)
            except Exception:  # the next response must be delivered in any case
                logger.exception("a response could not be passed to the backend")

    def _deliver(self, received: Received) -> None:
        reply = received.frame
        assert isinstance(reply, InferReply)
        call = self._open.get(reply.call)
        if call is None:
            return
        handle = 0
        if reply.error is not None or reply.outputs is not None:
            handle = self._responses.handles.add(call.response(received, reply))
        del received  # its memory is free
        if reply.is_final:
            with self._changed:
                self._remove(call)
        else:
            call.credit()
        call.request.deliver(handle, final=reply.is_final)
        if reply.is_final:
            call.request.give_back()


class _OpenCall:
    """One request on its way."""

    def __init__(
        self,
        number: int,
        request: CallerRequest,
        version: int,
        connection: ServerConnection,
        batch: int,
    ) -> None:
        self.number = number
        self._batch = batch  # of the caller; 0: unknown
        self.request = request
        self.connection = connection
        self._version = version
        self._uncredited = 0

    def frame(self, payload: Payload) -> InferCallFrame:
        """Returns the message, with the inputs in the payload."""
        request = self.request
        inputs = []
        for name, given in request.inputs.items():
            if given.dtype is None:
                raise InvalidArgumentError(f"expected input '{name}' with a datatype and a shape")
            size = sum(map(len, given.parts))
            block, offset = payload.add(given.parts, size)
            inputs.append(TensorRef(name, given.dtype.number, given.shape, offset, size, block))
        return InferCallFrame(
            self.number,
            request.model_name,
            request.version,
            inputs,
            list(request.outputs),
            request.id,
            request.correlation_id,
            request.flags,
            request.timeout_us,
            dict(request.parameters),
            is_decoupled=True,
            keeps_errors=True,
            priority=request.priority,
            batch=self._batch,
        )

    def cancel(self) -> None:
        """Cancel the request, which is still answered."""
        self.connection.outbox.post(CancelCall(self.number))

    def credit(self) -> None:
        """Let the called model send more after some responses."""
        self._uncredited += 1
        if self._uncredited >= _CREDIT_STEP:
            self.connection.outbox.post(CallCredit(self.number, self._uncredited))
            self._uncredited = 0

    def response(self, received: Received, reply: InferReply) -> CallerResponse:
        """Returns a response, with its outputs in memory that the backend gives."""
        request = self.request
        assert request.allocator is not None
        made = CallerResponse(request.allocator, request.model_name, self._version, request.id)
        made.fill(functools.partial(_read, received, reply, made), request.allocator_userp)
        return made


def _read(received: Received, reply: InferReply, made: CallerResponse) -> InferResponse:
    """Returns what the server sent; raises the error that it sent."""
    if reply.error is not None:
        raise error_from_code(reply.error_code, reply.error)
    tensors = [
        InferTensor(ref.name, BY_NUMBER[ref.dtype], ref.shape, received.buffer(ref))
        for ref in reply.outputs or ()
    ]
    return InferResponse(
        made.model_name, str(made.model_version), made.id, tensors, reply.parameters
    )
