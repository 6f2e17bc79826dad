# SPDX-License-Identifier: Apache-2.0
"""Requests of a backend to other models of the server, and questions about these models.

A thread of ours waits for responses and calls the backend's functions, as long as requests are
open. The server checks a request, so a refusal comes as a response.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING, Any

from pytriton.base.dtypes import BY_NUMBER
from pytriton.base.errors import InvalidArgumentError, UnavailableError, error_from_code
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.runtime.backend.mailbox import MessageInbox
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.caller_responses import CallerResponse
from pytriton.runtime.native_backend.memory import put_bool, put_word, required_text
from pytriton.runtime.native_backend.server_objects import check_config_version
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.transport.credit import RESPONSE_WINDOW
from pytriton.runtime.transport.frames import CallCredit, CancelCall, InferCallFrame, InferReply
from pytriton.runtime.transport.refs import TensorRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.backend.connection import ServerConnection
    from pytriton.runtime.native_backend.caller_requests import CallerRequest, CallerRequests
    from pytriton.runtime.native_backend.caller_responses import CallerResponses
    from pytriton.runtime.native_backend.server_objects import (
        Documents,
        Parameters,
    )
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


_NEWEST = -1


class CalledModels:
    """Answers of the server on its models.

    Args:
        server: The handle of the server.
        call: Asks the server; raises InvalidArgumentError if it refuses.
        documents: Gets answers in JSON.
        parameters: The parameters that exist.
    """

    def __init__(
        self,
        server: int,
        call: Callable[..., Any],
        documents: Documents,
        parameters: Parameters,
    ) -> None:
        self._server = server
        self._call = call
        self._documents = documents
        self._parameters = parameters
        # A cache: the server is asked once for a model that is called often. If the model is
        # unloaded meanwhile, the call itself is refused.
        self._found: dict[tuple[str, int], dict[str, Any]] = {}

    def find(self, server: int, name: str, version: int) -> dict[str, Any]:
        """Returns facts about a model that is ready; raises ServerError if it is not."""
        self._check(server)
        key = name, version
        if key not in self._found:
            self._found[key] = self._describe(name, version)
        return self._found[key]

    def _describe(self, name: str, version: int) -> dict[str, Any]:
        facts: dict[str, Any] = self._call("describe_model", name=name, version=_text(version))
        if "error" in facts:
            raise error_from_code(facts["code"], facts["error"])
        return facts

    def _check(self, server: int) -> None:
        if server != self._server:
            raise InvalidArgumentError(f"expected the handle of the server, got {server:#x}")

    @export("TRITONSERVER_ServerIsLive", "TRITONSERVER_ServerIsReady")
    def _is_live(self, server: int, place: int) -> None:
        self._check(server)
        put_bool(place, True)

    @export("TRITONSERVER_ServerModelIsReady")
    def _is_ready(self, server: int, name: bytes | None, version: int, place: int) -> None:
        self._check(server)
        ready = self._call("is_model_ready", name=required_text(name), version=_text(version))
        put_bool(place, ready)

    def properties(self, server: int, name: str, version: int) -> tuple[int, bool]:
        """Returns the `max_batch_size` of a model, and whether it is decoupled."""
        self._check(server)
        facts = self._describe(name, version)
        return facts["max_batch_size"], facts["is_decoupled"]

    @export("TRITONSERVER_ServerModelConfig")
    def _config(
        self, server: int, name: bytes | None, version: int, config_version: int, place: int
    ) -> None:
        self._check(server)
        facts = self._describe(required_text(name), version)
        check_config_version(config_version)
        put_word(place, self._documents.new_from_text(facts["config"].encode()))

    # Loading

    @export("TRITONSERVER_ServerLoadModel")
    def _load(self, server: int, name: bytes | None) -> None:
        self._load_with_parameters(server, name, 0, 0)

    @export("TRITONSERVER_ServerLoadModelWithParameters")
    def _load_with_parameters(
        self, server: int, name: bytes | None, parameters: int, count: int
    ) -> None:
        self._check(server)
        config, files = self._parameters.read_load(parameters, count)
        self._found.clear()
        self._call("load_model", name=required_text(name), config=config or "", files=files)

    @export("TRITONSERVER_ServerUnloadModel")
    def _unload(self, server: int, name: bytes | None) -> None:
        self._end(server, name, unload_dependents=False)

    @export("TRITONSERVER_ServerUnloadModelAndDependents")
    def _unload_with_dependents(self, server: int, name: bytes | None) -> None:
        self._end(server, name, unload_dependents=True)

    def _end(self, server: int, name: bytes | None, *, unload_dependents: bool) -> None:
        self._check(server)
        self._found.clear()
        self._call("unload_model", name=required_text(name), unload_dependents=unload_dependents)


def _text(version: int) -> str:
    return "" if version == _NEWEST else str(version)
