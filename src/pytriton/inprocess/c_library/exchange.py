# SPDX-License-Identifier: Apache-2.0
"""One request on its way through a server: its record, its trace, its responses, the callbacks.

No input is copied twice. The times of a trace are told when the request is over, all at once;
tensors are not traced.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pytriton.base.dtypes import BYTES
from pytriton.base.errors import InvalidArgumentError, ServerError, UnsupportedError
from pytriton.base.messages import (
    ExecutionTimes,
    InferRequest,
    InferResponse,
    InferTensor,
    RequestFields,
)
from pytriton.inprocess.c_library.servers import CallerServers, version_text
from pytriton.protocol.kserve_json import raw_input
from pytriton.runtime.executor.inference import Inference
from pytriton.runtime.native_backend.api_table import prototype
from pytriton.runtime.native_backend.callbacks import accessors, export
from pytriton.runtime.native_backend.caller_requests import (
    CallerInput,
    CallerRequest,
    CallerRequests,
)
from pytriton.runtime.native_backend.caller_responses import CallerResponse, CallerResponses
from pytriton.runtime.native_backend.memory import Handles, Texts, put_word, required_text
from pytriton.serving.engine.observers import Watcher
from pytriton.serving.engine.served_model import ServedModel

if TYPE_CHECKING:
    from pytriton.inprocess.c_library.servers import CallerServer
    from pytriton.runtime.native_backend.caller_responses import Allocator

_TIMES, _TENSORS = 0b0111, 0b1000  # of TRITONSERVER_InferenceTraceLevel; all but tensors are times
# Of TRITONSERVER_InferenceTraceActivity.
_REQUEST_START, _QUEUE_START, _COMPUTE_START, _INPUT_END, _OUTPUT_START, _COMPUTE_END = range(6)
_REQUEST_END, _CUSTOM = 6, 10
_FIELDS = {
    "Id": ("id", put_word),
    "ParentId": ("parent_id", put_word),
    "ModelVersion": ("model_version", put_word),
}
_numbers = itertools.count(1)


class Trace(Watcher):
    """One trace. While a server has it, it is the `ExecutionTrace` of its request."""

    def __init__(self, level: int, parent_id: int, functions: tuple[int, int], userp: int) -> None:
        self.handle = 0
        self.id = next(_numbers)
        self.parent_id = parent_id
        self.level = level
        self.functions = functions  # of activities, and of the release
        self.userp = userp
        self.model_name = ""
        self.model_version = 0
        self.request_id = ""
        self.context_text = ""
        self.texts = Texts()
        self._activity: Any = prototype("v:piQp")(functions[0]) if functions[0] else None
        self._release: Any = prototype("v:pp")(functions[1]) if functions[1] else None
        self._received_ns = 0
        self._executions: list[ExecutionTimes] = []

    def begin(self, request: InferRequest, model_version: int) -> None:
        """Belong to a request."""
        self.model_name, self.model_version = request.model_name, model_version
        self.request_id = request.fields.id
        self._received_ns = request.received_ns
        self._executions = []

    # On the engine's thread

    def add_execution(self, first: int, end: int, times_ns: ExecutionTimes) -> None:
        """Keep the times of an execution."""
        self._executions.append(times_ns)

    # On the thread of callbacks

    def end(self) -> None:
        """Tell all times, and give the trace back."""
        self.report(_REQUEST_START, self._received_ns)
        if self._executions:
            first, last = self._executions[0], self._executions[-1]
            self.report(_QUEUE_START, first.queued_ns)
            self.report(_COMPUTE_START, first.started_ns)
            self.report(_INPUT_END, first.infer_start_ns)
            self.report(_OUTPUT_START, last.output_start_ns)
            self.report(_COMPUTE_END, last.ended_ns)
        self.report(_REQUEST_END, time.monotonic_ns())
        if self._release is not None:
            self._release(self.handle, self.userp)

    def report(self, activity: int, time_ns: int) -> None:
        """Tell one time."""
        if self._activity is not None and self.level & _TIMES:
            self._activity(self.handle, activity, time_ns, self.userp)


class Traces:
    """The traces that exist."""

    def __init__(self) -> None:
        self.handles: Handles[Trace] = Handles("a trace")

    def _add(self, place: int, trace: Trace) -> None:
        trace.handle = self.handles.add(trace)
        put_word(place, trace.handle)

    @export("TRITONSERVER_InferenceTraceNew")
    def _new(
        self, place: int, level: int, parent_id: int, activity: int, release: int, userp: int
    ) -> None:
        if level & _TENSORS:
            raise UnsupportedError("tensors cannot be traced, only times: expected another level")
        self._add(place, Trace(level, parent_id, (activity, release), userp))

    @export("TRITONSERVER_InferenceTraceTensorNew")
    def _new_with_tensors(
        self, place: int, level: int, parent_id: int, activity: int, _tensors: int, *rest: int
    ) -> None:
        self._new(place, level, parent_id, activity, *rest)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Returns the functions that get one attribute."""
        return accessors("TRITONSERVER_InferenceTrace", _FIELDS, self.handles.get)

    @export("TRITONSERVER_InferenceTraceDelete")
    def _delete(self, handle: int) -> None:
        self.handles.pop(handle)

    @export("TRITONSERVER_InferenceTraceModelName")
    def _model_name(self, handle: int, place: int) -> None:
        trace = self.handles.get(handle)
        put_word(place, trace.texts.address("model name", trace.model_name))

    @export("TRITONSERVER_InferenceTraceRequestId")
    def _request_id(self, handle: int, place: int) -> None:
        trace = self.handles.get(handle)
        put_word(place, trace.texts.address("request id", trace.request_id))

    @export("TRITONSERVER_InferenceTraceSpawnChildTrace")
    def _spawn(self, handle: int, place: int) -> None:
        trace = self.handles.get(handle)
        self._add(place, Trace(trace.level, trace.id, trace.functions, trace.userp))

    @export("TRITONSERVER_InferenceTraceSetContext")
    def _set_context(self, handle: int, text: bytes | None) -> None:
        self.handles.get(handle).context_text = required_text(text)

    @export("TRITONSERVER_InferenceTraceContext")
    def _context(self, handle: int, place: int) -> None:
        trace = self.handles.get(handle)
        put_word(place, trace.texts.address("context", trace.context_text))

    @export("TRITONSERVER_InferenceTraceReportActivity")
    def _report(self, handle: int, time_ns: int, _name: bytes | None) -> None:
        self.handles.get(handle).report(_CUSTOM, time_ns)


class ScatteredBytes:
    """The bytes of an input in several buffers. The engine's thread joins them."""

    __slots__ = ("parts", "size")

    def __init__(self, parts: list[memoryview]) -> None:
        self.parts = parts
        self.size = sum(map(len, parts))

    def __len__(self) -> int:
        return self.size


def engine_request(request: CallerRequest, model: ServedModel) -> InferRequest:
    """Returns the record; raises InvalidArgumentError if a raw input does not fit the model."""
    return InferRequest(
        model_name=request.model_name,
        model_version=version_text(request.version),
        inputs=_tensors(request, model),
        fields=RequestFields(
            request.id,
            dict(request.parameters),
            request.priority,
            request.timeout_us,
            request.correlation_id,
            request.flags,
        ),
        outputs=tuple(request.outputs) or None,
        received_ns=time.monotonic_ns(),
    )


def _tensors(request: CallerRequest, model: ServedModel) -> dict[str, InferTensor]:
    tensors = {}
    for name, given in request.inputs.items():
        if given.dtype is None:
            data = b"".join(given.parts) if len(given.parts) > 1 else _data(given)
            tensor = raw_input(data, model.spec, request.id)
            tensors[tensor.name] = tensor
        else:
            tensors[name] = InferTensor(name, given.dtype, given.shape, _data(given))
    return tensors


def _data(given: CallerInput) -> Any:
    parts = given.parts
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return b""
    # The elements of BYTES are counted before the engine's thread sees them.
    return b"".join(parts) if given.dtype is BYTES else ScatteredBytes(parts)


def is_scattered(request: InferRequest) -> bool:
    """Returns whether an input is to be joined."""
    return any(isinstance(tensor.data, ScatteredBytes) for tensor in request.inputs.values())


def join_inputs(request: InferRequest, model: ServedModel) -> None:
    """Join the bytes of each input, in memory that instances can read if there is some.

    Called on the engine's thread, which is the only one that allocates there.
    """
    for tensor in request.inputs.values():
        if isinstance(tensor.data, ScatteredBytes):
            tensor.data = _joined(tensor.data, model)


def _joined(data: ScatteredBytes, model: ServedModel) -> memoryview | bytes:
    memory = model.body_memory(data.size, 0)
    if memory is None:
        return b"".join(data.parts)
    at = 0
    for part in data.parts:
        memory[at : at + len(part)] = part
        at += len(part)
    return memory[:at]


# So many responses may wait for the application; then the model waits for it, too.
_MOST_WAITING = 16


class CallerExchange:
    """The sink of a request. The engine calls it on its thread; callbacks are made on another.

    Args:
        request: The request.
        allocator: Gives memory for its outputs.
        server: The server.
        model: The model that serves it.
        responses: Where responses are for the application.
        trace: Gets the times of the request; None: it is not traced.
    """

    def __init__(
        self,
        request: CallerRequest,
        allocator: Allocator,
        server: CallerServer,
        model: ServedModel,
        responses: CallerResponses,
        trace: Trace | None = None,
    ) -> None:
        self._request = request
        self._allocator = allocator
        self._server = server
        self._model = model
        self._responses = responses
        self._trace = trace
        self._inference: Inference | None = None
        self._added_count = 0  # written by the engine's thread
        self._delivered_count = 0  # written by the thread of callbacks
        self._is_paused = False

    # On the application's threads

    def send(self) -> None:
        """Check the request and give it to the engine; raises ServerError if it is refused."""
        request, engine = self._request, self._server.engine
        record = engine_request(request, self._model)
        engine.validate(record, self._model)
        if self._trace is not None:
            self._trace.begin(record, self._model.spec.version)
        inference = self._inference = Inference(record, self, self._trace)
        request.sent, request.was_sent, request.is_cancelled = self, True, False
        self._server.exchanges.add(self)
        try:
            if is_scattered(record):
                engine.post(self._join_and_submit)
            else:
                engine.submit(self._model, inference)
        except ServerError:  # the server ends at this moment
            try:
                self._server.exchanges.remove(self)
            except KeyError:
                return  # the thread that ends the server answers it
            request.sent = None
            raise

    def _join_and_submit(self) -> None:
        assert self._inference is not None
        try:
            join_inputs(self._inference.request, self._model)
        except ServerError as error:  # no room; the engine has not counted the request
            self._pass_on(None, error, final=True)
        else:
            self._server.engine.submit(self._model, self._inference)

    def cancel(self) -> None:
        """Cancel the request, which is still answered."""
        inference = self._inference
        if inference is not None:
            self._server.engine.post(inference.cancel)

    # ResponseSink, on the engine's thread

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """See `ResponseSink`."""
        waiting = self._added_count - self._delivered_count
        if not final and waiting >= _MOST_WAITING and not self._is_paused:
            self._is_paused = True  # before the response is added whose delivery ends the pause
            if self._inference is not None:
                self._inference.pause()
        self._add(response, None, final=final)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """See `ResponseSink`."""
        self._add(None, error, final=final)

    def on_refused(self, error: ServerError) -> None:
        """See `ResponseSink`."""
        self._add(None, error, final=True)

    def _add(
        self, response: InferResponse | None, error: ServerError | None, *, final: bool
    ) -> None:
        if final:
            self._server.engine.end_request()
        self._pass_on(response, error, final=final)

    def _pass_on(
        self, response: InferResponse | None, error: ServerError | None, *, final: bool
    ) -> None:
        self._added_count += 1
        if final:
            self._server.exchanges.discard(self)
            self._inference = None  # they refer to each other, which would keep large tensors
        self._server.delivery.add(partial(self._deliver, response, error, final=final))

    # On the thread of callbacks

    def _deliver(
        self, response: InferResponse | None, error: ServerError | None, *, final: bool
    ) -> None:
        self._delivered_count += 1
        if self._is_paused and self._delivered_count == self._added_count:
            self._is_paused = False
            inference = self._inference
            if inference is not None:
                self._server.engine.post(inference.resume)
        handle = 0
        if response is not None or error is not None:
            handle = self._responses.handles.add(self._made(response, error))
        try:
            self._request.deliver(handle, final=final)
        finally:
            if final:
                if self._trace is not None:
                    self._trace.end()
                self._request.give_back()

    def _made(self, response: InferResponse | None, error: ServerError | None) -> CallerResponse:
        spec, request = self._model.spec, self._request
        made = CallerResponse(self._allocator, spec.name, spec.version, request.id)
        made.labels = spec.labels
        made.fill(partial(_outcome, response, error), request.allocator_userp)
        return made


def _outcome(response: InferResponse | None, error: ServerError | None) -> InferResponse:
    if error is not None:
        raise error
    assert response is not None
    return response


class Inferences:
    """Sends the application's requests."""

    def __init__(
        self,
        servers: CallerServers,
        requests: CallerRequests,
        responses: CallerResponses,
        traces: Traces,
    ) -> None:
        self._servers = servers
        self._requests = requests
        self._responses = responses
        self._traces = traces

    @export("TRITONSERVER_ServerInferAsync")
    def _infer(self, handle: int, request_handle: int, trace_handle: int) -> None:
        server, request = self._servers.handles.get(handle), self._requests.owned(request_handle)
        trace = self._traces.handles.get(trace_handle) if trace_handle else None
        if request.allocator is None or not request.respond[0]:
            raise InvalidArgumentError(
                "expected a request with an allocator and a response callback, see "
                "TRITONSERVER_InferenceRequestSetResponseCallback"
            )
        model = self._servers.find(handle, request.model_name, request.version)
        CallerExchange(request, request.allocator, server, model, self._responses, trace).send()
