# SPDX-License-Identifier: Apache-2.0
"""TRITONBACKEND_Response, _ResponseFactory and _State: answers of a backend, ends of requests."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

from pytriton.base.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import (
    Handles,
    KeptRecords,
    decoded,
    put_bool,
    put_half_word,
    put_word,
    word,
    words,
)
from pytriton.runtime.native_backend.outputs import (
    BackendOutput,
    BackendResponse,
    OutputLane,
    OutputMemory,
    check_outputs,
    make_single_item,
)
from pytriton.runtime.native_backend.records import InputWord
from pytriton.runtime.native_backend.server_objects import Attributes, BufferAttributes
from pytriton.runtime.transport.arena import DEFAULT_LIMIT_BYTES
from pytriton.runtime.transport.frames import ResponseItem
from pytriton.runtime.transport.payload import Payload

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pytriton.base.messages import ParameterValue
    from pytriton.runtime.native_backend.foreign_threads import ForeignThreads
    from pytriton.runtime.native_backend.outputs import CollectedAnswers
    from pytriton.runtime.native_backend.requests import BackendRequest, BackendRequests
    from pytriton.runtime.native_backend.server_objects import Errors

ALREADY_ANSWERED = "the final response to this request was sent already"
_FINAL = 1  # TRITONSERVER_RESPONSE_COMPLETE_FINAL
_RELEASE_ALL, _RESCHEDULE = 1, 2  # TRITONSERVER_REQUEST_RELEASE_*
_CPU = 0  # TRITONSERVER_MEMORY_CPU
_MAX_DIMS = 64


class BackendResponses:
    """The responses, factories and states that exist.

    While the backend executes a batch of a model that is not decoupled, answers are kept for one
    message (`CollectedAnswers`). Others are sent at once, from the thread that calls.

    Args:
        requests: The requests to answer.
        errors: The errors that C passes.
        output_names: The outputs of the model.
        state_names: The outputs that are states of sequences.
        threads: Knows the backend's own threads.
        model_name: The name of the model, for errors.
    """

    def __init__(
        self,
        requests: BackendRequests,
        errors: Errors,
        output_names: Collection[str],
        state_names: Collection[str],
        threads: ForeignThreads,
        model_name: str,
    ) -> None:
        self._requests = requests
        self._errors = errors
        self._output_names = {name.encode(): name for name in output_names}
        self._state_names = {name.encode(): name for name in state_names}
        self._threads = threads
        self._model_name = model_name
        self._responses: Handles[BackendResponse] = Handles("a response")
        self._factories: Handles[BackendRequest] = Handles("a response factory")
        self._outputs: Handles[tuple[BackendOutput, BackendRequest]] = Handles("an output")
        self._states: Handles[tuple[BackendOutput, BackendRequest]] = Handles("a state")

    def response(self, handle: int) -> BackendResponse:
        """Returns a response that is not sent; InvalidArgumentError for another handle."""
        return self._responses.get(handle)

    def output(self, handle: int) -> BackendOutput:
        """Returns an output of a response that is not sent."""
        return self._outputs.get(handle)[0]

    def state(self, handle: int) -> BackendOutput:
        """Returns a state that is not updated yet."""
        return self._states.get(handle)[0]

    def find_more_with(self, find_more: Callable[[], None]) -> None:
        """Set what is called before the handle of a response or an output is refused."""
        self._responses.find_more = self._outputs.find_more = find_more

    def adopt(self, response: BackendResponse, handle: int, *, is_sent: bool) -> None:
        """Take over a response that was made without Python; handles of outputs follow its own."""
        request = response.request
        if is_sent:
            request.answer, request.answer_count, request.is_ended = response, 1, True
            return
        request.handles.append(None)
        self._responses.add_at(handle, response)
        for number, output in enumerate(response.outputs, handle + 1):
            self._outputs.add_at(number, (output, request))
            response.handles.append(number)

    # A request ends when nothing is left that could answer it: neither itself, nor a factory or a
    # response that was made for it.

    @export("TRITONBACKEND_RequestRelease")
    def _release(self, handle: int, flags: int) -> None:
        request = self._requests.live.get(handle)
        if flags not in (_RELEASE_ALL, _RESCHEDULE):
            raise InvalidArgumentError(f"expected a flag for the release of a request, got {flags}")
        self._requests.live.discard(handle)
        request.owned = None
        if flags == _RESCHEDULE:
            self._reschedule(request)
        self._drop(request)
        self._threads.unpin()

    def _reschedule(self, request: BackendRequest) -> None:
        collected, position = request.collected, request.position
        with collected.lock:
            request.is_rescheduled = True
            is_late = collected.has_returned
        if is_late:
            number = collected.execute.batch
            item = ResponseItem(number, position, is_rescheduled=True)
            collected.batch.send(position, None, is_final=True, end=item)

    def _drop(self, request: BackendRequest) -> None:
        request.handles.pop()
        if not request.handles:
            self.end_if_over(request)

    def end_if_over(self, request: BackendRequest) -> None:
        """Forget a request that the backend has dropped; answer it if it has no answer.

        That is not before the backend's function has returned, because its caller needs it.
        """
        collected: CollectedAnswers | None = request.collected
        if collected is None or not collected.has_returned:
            return  # another thread has done it, or will do it
        with collected.lock:
            if request.handles or request.is_over:
                return
            request.is_over = True  # for this thread to do
        batch, position = collected.batch, request.position
        if batch.is_open(position) and batch.is_decoupled:
            item = make_single_item(request, Payload(None))  # an end, without tensors
            batch.send(position, None, is_final=True, end=item)
        elif batch.is_open(position):
            batch.respond(position, functools.partial(make_single_item, request))
        for state in request.state_handles:
            self._states.discard(state)
        self._requests.recycle(request)

    # Responses

    @export("TRITONBACKEND_ResponseNew")
    def _new(self, out: int, request: int) -> None:
        self._make(out, self._requests.live.get(request))

    @export("TRITONBACKEND_ResponseNewFromFactory")
    def _new_from_factory(self, out: int, factory: int) -> None:
        self._make(out, self._factories.get(factory))

    def _make(self, out: int, request: BackendRequest) -> None:
        self._threads.pin()
        request.handles.append(None)
        put_word(out, self._responses.add(BackendResponse(request)))

    @export("TRITONBACKEND_ResponseDelete")
    def _delete(self, handle: int) -> None:
        self._drop(self._take(handle).request)

    def _take(self, handle: int) -> BackendResponse:
        response = self._responses.pop(handle)
        for output in response.handles:
            self._outputs.discard(output)
        return response

    @export("TRITONBACKEND_ResponseSend")
    def _send(self, handle: int, flags: int, error: int) -> None:
        response = self._take(handle)
        request = response.request
        try:
            # The error stays with the backend, which deletes it.
            response.error = self._errors.read(error) if error else check_outputs(response)
            self._deliver(request, response, is_final=bool(flags & _FINAL))
        finally:
            self._drop(request)

    def _deliver(
        self, request: BackendRequest, response: BackendResponse | None, *, is_final: bool
    ) -> None:
        collected, position = request.collected, request.position
        batch = collected.batch
        if request.is_ended or not batch.is_open(position):
            raise InvalidArgumentError(ALREADY_ANSWERED)
        if batch.is_decoupled:
            # Nothing of the request, which may be another one's before a slow client gets this.
            if response is not None and response.error is None:
                response.states, request.states = request.states or {}, None
            batch.send(position, response, is_final=is_final)
            return
        if response is not None:
            request.answer_count += 1
            request.answer = response
        if not is_final:
            return  # clients get it together with the end
        if collected.is_collecting and threading.get_ident() == collected.thread:
            request.is_ended = True  # this thread sends it when the backend's function returns
            return
        with collected.lock:
            request.is_ended = True
            is_sent_here = not collected.is_collecting
        if is_sent_here:
            batch.respond(position, functools.partial(make_single_item, request))

    @export("TRITONBACKEND_ResponseOutput")
    def _add_output(
        self, handle: int, out: int, name: bytes | None, datatype: int, shape: int, dims: int
    ) -> None:
        response = self._responses.get(handle)
        known = self._output_names.get(name or b"")
        if known is None:
            raise InvalidArgumentError(
                f"unexpected inference output '{decoded(name)}' for model '{self._model_name}'"
            )
        output = BackendOutput(known, datatype, _shape(shape, dims))
        response.outputs.append(output)
        handle = self._outputs.add((output, response.request))
        response.handles.append(handle)
        put_word(out, handle)

    @export("TRITONBACKEND_OutputBuffer")
    def _output_buffer(
        self, handle: int, buffer: int, size: int, memory_type: int, memory_id: int
    ) -> None:
        output, request = self._outputs.get(handle)
        if output.place is not None:
            raise AlreadyExistsError(f"allocated buffer for output '{output.name}' already exists")
        collected = request.collected
        lane = self._lane(request, output, size) if collected.is_collecting else None
        if lane is None:
            address = output.allocate(collected.outbox, size)
        else:
            address = output.allocate_in(lane, collected.row_starts[request.position], size)
            lane.filled.add(request.position)
        put_word(buffer, address)
        put_half_word(memory_type, _CPU)
        put_word(memory_id, 0)

    def _lane(self, request: BackendRequest, output: BackendOutput, size: int) -> OutputLane | None:
        """Returns where an output of the batch is, if this one fits there."""
        collected = request.collected
        rows = (
            collected.execute.rows[request.position]
            if len(collected.row_starts) > 1
            else collected.row_count
        )
        lane = collected.lanes.get(output.name)
        if lane is None:
            if (
                not rows
                or not 0 < size <= DEFAULT_LIMIT_BYTES // collected.row_count
                or size % rows
            ):
                return None
            if rows > 1 and output.shape[:1] != (rows,):
                return None
            row_bytes = size // rows
            place = OutputMemory(collected.outbox, row_bytes * collected.row_count)
            lane = collected.lanes[output.name] = OutputLane(place, row_bytes)
        fits = size == rows * lane.row_bytes and request.position not in lane.filled
        return lane if fits else None

    @export("TRITONBACKEND_ResponseSetStringParameter")
    def _set_string(self, handle: int, name: bytes, value: bytes | None) -> None:
        self._set_parameter(handle, name, decoded(value))

    @export(
        "TRITONBACKEND_ResponseSetIntParameter",
        "TRITONBACKEND_ResponseSetBoolParameter",
        "TRITONBACKEND_ResponseSetDoubleParameter",
    )
    def _set_parameter(self, handle: int, name: bytes, value: ParameterValue) -> None:
        response = self._responses.get(handle)
        if response.parameters is None:
            response.parameters = {}
        response.parameters[decoded(name)] = value

    # Factories

    @export("TRITONBACKEND_ResponseFactoryNew")
    def _new_factory(self, out: int, handle: int) -> None:
        request = self._requests.live.get(handle)
        request.handles.append(None)
        put_word(out, self._factories.add(request))

    @export("TRITONBACKEND_ResponseFactoryDelete")
    def _delete_factory(self, factory: int) -> None:
        self._drop(self._factories.pop(factory))
        self._threads.unpin()

    @export("TRITONBACKEND_ResponseFactorySendFlags")
    def _send_flags(self, factory: int, flags: int) -> None:
        request = self._factories.get(factory)
        if flags & _FINAL:
            self._deliver(request, None, is_final=True)

    @export("TRITONBACKEND_ResponseFactoryIsCancelled")
    def _is_cancelled(self, factory: int, out: int) -> None:
        request = self._factories.get(factory)
        self._threads.pin()
        put_bool(out, request.collected.batch.is_cancelled(request.position))

    # States of sequences, which are sent with the next response

    @export("TRITONBACKEND_StateNew")
    def _new_state(
        self, out: int, handle: int, name: bytes | None, datatype: int, shape: int, dims: int
    ) -> None:
        request = self._requests.live.get(handle)
        known = self._state_names.get(name or b"")
        if known is None:
            put_word(out, 0)
            raise InvalidArgumentError(f"state '{decoded(name)}' is not a valid state name.")
        state = self._states.add((BackendOutput(known, datatype, _shape(shape, dims)), request))
        request.state_handles.append(state)
        put_word(out, state)

    @export("TRITONBACKEND_StateBuffer")
    def _state_buffer(
        self, handle: int, buffer: int, size: int, memory_type: int, memory_id: int
    ) -> None:
        state, request = self._states.get(handle)
        put_word(buffer, state.allocate(request.collected.outbox, size))
        put_half_word(memory_type, _CPU)
        put_word(memory_id, 0)

    @export("TRITONBACKEND_StateUpdate")
    def _update_state(self, handle: int) -> None:
        state, request = self._states.get(handle)
        state.check()  # the next request of the sequence gets it as an input
        self._states.discard(handle)
        if request.states is None:
            request.states = {}
        request.states[state.name] = state


def _shape(address: int, dims: int) -> tuple[int, ...]:
    if dims > _MAX_DIMS:
        raise InvalidArgumentError(f"expected at most {_MAX_DIMS} dimensions, got {dims}")
    return words(address, dims) if dims else ()


class OutputDescription:
    """What C was told of an output; lives as long as the output."""

    __slots__ = ("_table", "attributes", "handle", "kept")

    def __init__(self, table: BufferAttributes) -> None:
        self._table = table
        self.attributes = Attributes()
        self.handle = table.handles.add(self.attributes)
        self.kept = KeptRecords()

    def __del__(self) -> None:
        self._table.handles.discard(self.handle)


class TensorQuestions:
    """Answers of what the backend asks about its tensors.

    Args:
        table: The attributes that exist.
        responses: Has the outputs and states.
    """

    def __init__(self, table: BufferAttributes, responses: BackendResponses) -> None:
        self._table = table
        self._responses = responses
        # Records of inputs are used again, so there are few.
        self._inputs: dict[int, tuple[int, Attributes]] = {}

    @export("TRITONBACKEND_InputBufferAttributes")
    def _input(self, record: int, index: int, buffer: int, place: int) -> None:
        if not record:
            raise InvalidArgumentError("expected a handle of an input, got NULL")
        if record not in self._inputs:
            attributes = Attributes()
            self._inputs[record] = self._table.handles.add(attributes), attributes
        handle, attributes = self._inputs[record]
        # As in Triton, an index that is none is no error: there is no buffer.
        is_there = index == 0
        attributes.byte_size = word(record, InputWord.SIZE) if is_there else 0
        put_word(buffer, word(record, InputWord.BUFFER) if is_there else 0)
        put_word(place, handle)

    @export("TRITONBACKEND_OutputBufferAttributes")
    def _output(self, handle: int, place: int) -> None:
        self._describe(self._responses.output(handle), place)

    @export("TRITONBACKEND_StateBufferAttributes")
    def _state(self, handle: int, place: int) -> None:
        self._describe(self._responses.state(handle), place)

    def _describe(self, output: BackendOutput, place: int) -> None:
        description = self._description(output)
        description.attributes.byte_size = output.size
        put_word(place, description.handle)

    def _description(self, output: BackendOutput) -> OutputDescription:
        if output.description is None:
            output.description = OutputDescription(self._table)
        return output.description

    @export("TRITONBACKEND_InferenceResponseOutputByName")
    def _by_name(
        self, handle: int, name: bytes | None, datatype: int, shape: int, dims: int
    ) -> None:
        wanted = decoded(name)
        for output in self._responses.response(handle).outputs:
            if output.name == wanted:
                self._tell(output, datatype, shape, dims)
                return
        raise NotFoundError(f"Output name {wanted} not found.")

    @export("TRITONBACKEND_InferenceResponseOutput")
    def _by_index(
        self, handle: int, index: int, name: int, datatype: int, shape: int, dims: int
    ) -> None:
        response: BackendResponse = self._responses.response(handle)
        count = len(response.outputs)
        if index >= count:
            raise InvalidArgumentError(f"out of bounds index {index}: response has {count} outputs")
        output = response.outputs[index]
        put_word(name, self._description(output).kept.string(output.name))
        self._tell(output, datatype, shape, dims)

    def _tell(self, output: BackendOutput, datatype: int, shape: int, dims: int) -> None:
        put_half_word(datatype, output.dtype)
        put_word(shape, self._description(output).kept.words(*output.shape))
        put_word(dims, len(output.shape))
