# SPDX-License-Identifier: Apache-2.0
"""The objects of a caller of the C API, used through the functions that C would call."""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_int32, c_int64, c_uint32, c_uint64

import pytest

from pytriton.base.dtypes import FP32
from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ServerError,
    UnsupportedError,
)
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.inprocess.c_library.servers import ProcessMetrics
from pytriton.runtime.native_backend.api_table import prototype
from pytriton.runtime.native_backend.callbacks import exported
from pytriton.runtime.native_backend.caller_requests import CallerRequests
from pytriton.runtime.native_backend.caller_responses import (
    Allocators,
    CallerResponse,
    CallerResponses,
)
from pytriton.runtime.native_backend.memory import Texts, text
from pytriton.runtime.native_backend.metrics import MetricFunctions
from pytriton.runtime.native_backend.server_objects import (
    BufferAttributes,
    Errors,
    Parameters,
    ParameterType,
)

_GPU = 2


class Caller:
    """Calls functions by name, with places for results, and gives memory for outputs."""

    def __init__(self) -> None:
        self.errors, self.attributes, self.parameters = Errors(), BufferAttributes(), Parameters()
        self.allocators = Allocators(self.errors, self.attributes)
        self.requests = CallerRequests(self._find, self.allocators, self.attributes)
        self.responses = CallerResponses(self.errors)
        self.functions = exported(
            self.errors, self.attributes, self.parameters, self.allocators, self.requests,
            self.responses,
        )  # fmt: skip
        self.log: list[str] = []
        self.blocks: list[object] = []
        self.memory_type = 0
        self.refusal = ""
        self._callbacks = (
            prototype("e:ppQiqppppp")(self._alloc),
            prototype("e:pppQiq")(self._release),
            prototype("e:pp")(self._start),
        )

    def __call__(self, name: str, *arguments: object) -> int:
        return self.functions[f"TRITONSERVER_{name}"](*arguments)

    def made(self, name: str, *arguments: object) -> int:
        """Call a function that puts a handle or a number in its first place."""
        place = c_uint64()
        self(name, addressof(place), *arguments)
        return place.value

    def asked(self, name: str, handle: int, kind=c_uint64) -> int:
        place = kind()
        self(name, handle, addressof(place))
        return place.value

    def allocator(self):
        addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in self._callbacks]
        return self.allocators.handles.get(self.made("ResponseAllocatorNew", *addresses))

    def _find(self, server: int, name: str, version: int) -> None:
        if name != "model":
            raise NotFoundError(f"no {name} {version} in {server}")

    def _start(self, allocator: int, userp: int) -> int:
        self.log.append(f"start {userp}")
        return 0

    def _alloc(self, allocator: int, name: int, size: int, kind: int, device: int, *rest) -> int:
        userp, buffer, buffer_userp, actual, actual_id = rest
        self.log.append(f"alloc {ctypes.string_at(name).decode()} {size} {userp}")
        if self.refusal:
            return self.errors.new(3, self.refusal)
        block = ctypes.create_string_buffer(max(1, size))
        self.blocks.append(block)
        c_uint64.from_address(buffer).value = addressof(block) if size else 0
        c_uint64.from_address(buffer_userp).value = 99
        c_int32.from_address(actual).value = self.memory_type
        c_int64.from_address(actual_id).value = 0
        return 0

    def _release(self, allocator: int, buffer: int, userp: int, size: int, *place: int) -> int:
        self.log.append(f"release {size} {userp}")
        return 0


@pytest.fixture
def caller() -> Caller:
    return Caller()


def _request(caller: Caller) -> int:
    return caller.made("InferenceRequestNew", 1, b"model", -1)


def _response(caller: Caller, *outputs: InferTensor, userp: int = 5) -> CallerResponse:
    response = CallerResponse(caller.allocator(), "model", 1, "id")
    response.take(InferResponse("model", "1", "id", list(outputs)), userp)
    return response


def _add_input(caller: Caller, request: int, name: bytes) -> None:
    shape = (c_int64 * 2)(1, 2)
    caller("InferenceRequestAddInput", request, name, FP32.number, addressof(shape), 2)


def test_request_is_for_a_model_that_is_there(caller):
    with pytest.raises(NotFoundError):
        caller.made("InferenceRequestNew", 1, b"other", -1)


@pytest.mark.parametrize("handle", [0, 77])
def test_unknown_handle_is_an_error(caller, handle):
    with pytest.raises(InvalidArgumentError, match="expected a handle of a request, got"):
        caller("InferenceRequestSetId", handle, b"id")


def test_request_says_what_was_set(caller):
    request = _request(caller)
    caller("InferenceRequestSetId", request, b"mine")
    caller("InferenceRequestSetFlags", request, 3)
    caller("InferenceRequestSetPriorityUInt64", request, 2**32 + 7)
    caller("InferenceRequestSetTimeoutMicroseconds", request, 9)
    caller("InferenceRequestSetCorrelationId", request, 11)

    name = caller.asked("InferenceRequestId", request)
    assert ctypes.string_at(name) == b"mine"
    assert caller.asked("InferenceRequestId", request) == name
    assert caller.asked("InferenceRequestFlags", request, c_uint32) == 3
    assert caller.asked("InferenceRequestPriorityUInt64", request) == 2**32 + 7
    assert caller.asked("InferenceRequestPriority", request, c_uint32) == 7
    assert caller.asked("InferenceRequestTimeoutMicroseconds", request) == 9
    assert caller.asked("InferenceRequestCorrelationId", request) == 11


def test_correlation_id_is_a_number_or_a_text(caller):
    request = _request(caller)
    with pytest.raises(InvalidArgumentError, match="is not a string"):
        caller.asked("InferenceRequestCorrelationIdString", request)
    caller("InferenceRequestSetCorrelationIdString", request, b"abc")

    assert ctypes.string_at(caller.asked("InferenceRequestCorrelationIdString", request)) == b"abc"
    with pytest.raises(InvalidArgumentError, match="is not an unsigned int"):
        caller.asked("InferenceRequestCorrelationId", request)
    with pytest.raises(UnsupportedError, match="cannot be longer than 128 characters"):
        caller("InferenceRequestSetCorrelationIdString", request, b"x" * 129)


def test_inputs_are_views_of_the_callers_memory(caller):
    request = _request(caller)
    _add_input(caller, request, b"x")
    data = ctypes.create_string_buffer(b"abcdefgh", 8)
    caller("InferenceRequestAppendInputData", request, b"x", addressof(data), 5, 0, 0)
    attributes = caller.made("BufferAttributesNew")
    caller("BufferAttributesSetByteSize", attributes, 3)
    append = "InferenceRequestAppendInputDataWithBufferAttributes"
    caller(append, request, b"x", addressof(data) + 5, attributes)
    data[0] = b"A"

    found = caller.requests.handles.get(request).inputs["x"]
    assert (found.dtype, found.shape) == (FP32, (1, 2))
    assert b"".join(found.parts) == b"Abcdefgh"


def test_wrong_inputs_have_tritons_words(caller):
    request = _request(caller)
    _add_input(caller, request, b"x")
    unknown = r"\[request id: <id_unknown>\] input 'y' does not exist in request"

    with pytest.raises(InvalidArgumentError, match="input 'x' already exists in request"):
        _add_input(caller, request, b"x")
    with pytest.raises(InvalidArgumentError, match="'y' can't be added to request with other"):
        caller("InferenceRequestAddRawInput", request, b"y")
    for name in ("RemoveInput", "RemoveAllInputData"):
        with pytest.raises(InvalidArgumentError, match=unknown):
            caller(f"InferenceRequest{name}", request, b"y")
    with pytest.raises(UnsupportedError, match="in CPU memory, got GPU memory"):
        caller("InferenceRequestAppendInputData", request, b"x", 8, 1, _GPU, 0)
    with pytest.raises(InvalidArgumentError, match="expected the address of 1 bytes, got NULL"):
        caller("InferenceRequestAppendInputData", request, b"x", 0, 1, 0, 0)
    with pytest.raises(InvalidArgumentError, match="expected a datatype, got the number 99"):
        caller("InferenceRequestAddInput", request, b"z", 99, 8, 0)


def test_inputs_and_outputs_can_be_removed(caller):
    request = _request(caller)
    for name in (b"x", b"y"):
        _add_input(caller, request, name)
        caller("InferenceRequestAddRequestedOutput", request, name)
    caller("InferenceRequestRemoveInput", request, b"x")
    caller("InferenceRequestRemoveRequestedOutput", request, b"x")
    caller("InferenceRequestRemoveRequestedOutput", request, b"unknown")

    found = caller.requests.handles.get(request)
    assert list(found.inputs) == list(found.outputs) == ["y"]
    caller("InferenceRequestRemoveAllInputs", request)
    caller("InferenceRequestRemoveAllRequestedOutputs", request)
    assert not found.inputs
    assert not found.outputs


def test_request_that_was_sent_is_left_alone_until_it_is_released(caller):
    class Sent:
        is_cancelled = False

        def cancel(self) -> None:
            self.is_cancelled = True

    request = _request(caller)
    with pytest.raises(InternalError, match="not possible to cancel an inference request before"):
        caller("InferenceRequestCancel", request)
    found = caller.requests.handles.get(request)
    found.sent, found.was_sent = sent, _ = Sent(), True

    for name, arguments in (("SetId", (b"x",)), ("Delete", ()), ("RemoveAllInputs", ())):
        with pytest.raises(InvalidArgumentError, match="is not released yet"):
            caller(f"InferenceRequest{name}", request, *arguments)
    caller("InferenceRequestCancel", request)
    assert sent.is_cancelled
    assert caller.asked("InferenceRequestIsCancelled", request, ctypes.c_bool)


def test_outputs_are_copied_to_memory_of_the_caller(caller):
    values = (ctypes.c_float * 2)(1.5, 2.5)
    response = _response(
        caller,
        InferTensor("out", FP32, (1, 2), memoryview(values).cast("B")),
        InferTensor("empty", FP32, (1, 0), b""),
    )
    handle = caller.responses.handles.add(response)

    places = [c_uint64() for _ in range(9)]
    caller("InferenceResponseOutput", handle, 0, *map(addressof, places))
    name, dtype, shape, dims, base, size, memory_type, device, userp = (p.value for p in places)
    assert ctypes.string_at(name) == b"out"
    assert (dtype, dims, size, memory_type, device, userp) == (FP32.number, 2, 8, 0, 0, 99)
    assert list((c_int64 * 2).from_address(shape)) == [1, 2]
    assert ctypes.string_at(base, 8) == bytes(values)
    caller("InferenceResponseDelete", handle)
    assert caller.log == ["alloc out 8 5", "alloc empty 0 5", "release 8 99"]


def test_large_outputs_are_copied_whole(caller):
    data = bytes(range(256)) * 1024

    response = _response(caller, InferTensor("out", FP32, (1, len(data) // 4), data))

    assert ctypes.string_at(response.buffers[0].address, len(data)) == data


def test_error_of_an_allocator_is_the_error_of_the_response(caller):
    caller.refusal = "no room"

    with pytest.raises(InvalidArgumentError, match="no room"):
        _response(caller, InferTensor("out", FP32, (1,), b"1234"))
    assert not len(caller.errors)


def test_memory_of_a_gpu_goes_back(caller):
    caller.memory_type = _GPU

    with pytest.raises(UnsupportedError, match="expected memory of the CPU for output 'out'"):
        _response(caller, InferTensor("out", FP32, (1,), b"1234"))
    assert caller.log == ["alloc out 4 5", "release 4 99"]


def test_response_that_failed_has_its_error_only(caller):
    response = _response(caller, InferTensor("out", FP32, (1,), b"1234"))
    response.fail(ServerError("bad"))
    handle = caller.responses.handles.add(response)

    error = caller("InferenceResponseError", handle)
    assert ctypes.string_at(caller("ErrorMessage", error)) == b"bad"
    assert caller("InferenceResponseError", handle) == error
    assert caller.asked("InferenceResponseOutputCount", handle, c_uint32) == 0
    caller("InferenceResponseDelete", handle)
    assert not len(caller.errors)
    assert caller.log == ["alloc out 4 5", "release 4 99"]


def test_parameters_of_a_response_keep_their_types(caller):
    response = _response(caller)
    response.parameters = [("t", "text"), ("i", -3), ("b", True), ("d", 1.5)]
    handle = caller.responses.handles.add(response)

    found = []
    for index in range(caller.asked("InferenceResponseParameterCount", handle, c_uint32)):
        places = [c_uint64() for _ in range(3)]
        caller("InferenceResponseParameter", handle, index, *map(addressof, places))
        name, kind, value = (place.value for place in places)
        kinds = {1: c_int64, 2: ctypes.c_bool, 3: ctypes.c_double}
        read = kinds[kind].from_address(value).value if kind else ctypes.string_at(value)
        found.append((ctypes.string_at(name), ParameterType(kind).name, read))
    assert found == [
        (b"t", "STRING", b"text"), (b"i", "INT", -3), (b"b", "BOOL", True), (b"d", "DOUBLE", 1.5),
    ]  # fmt: skip
    with pytest.raises(InvalidArgumentError, match="out of bounds index 4: response has 4 param"):
        caller("InferenceResponseParameter", handle, 4, 8, 8, 8)


def test_labels_of_classes_are_those_of_the_model(caller):
    response = _response(caller, InferTensor("out", FP32, (1,), b"1234"))
    response.labels = {"out": ("cat", "dog")}
    handle = caller.responses.handles.add(response)

    def label(index: int) -> int:
        place = c_uint64()
        name = "InferenceResponseOutputClassificationLabel"
        caller(name, handle, 0, index, addressof(place))
        return place.value

    assert ctypes.string_at(label(1)) == b"dog"
    assert label(2) == 0


def test_parameters_have_their_values(caller):
    number, flag, ratio = c_int64(-4), ctypes.c_bool(True), ctypes.c_double(0.5)
    text = ctypes.create_string_buffer(b"value")
    handles = [
        caller("ParameterNew", b"a", kind, addressof(value))
        for kind, value in enumerate((text, number, flag, ratio))
    ]
    handles.append(caller("ParameterBytesNew", b"a", addressof(text), 3))
    array = (c_uint64 * 5)(*handles)

    found = caller.parameters.read(addressof(array), 5)
    assert [each.value for each in found] == ["value", -4, True, 0.5, b"val"]
    assert caller("ParameterNew", b"a", 4, addressof(text)) == 0
    assert caller("ParameterNew", b"a", 9, addressof(text)) == 0
    caller("ParameterDelete", handles[0])
    with pytest.raises(InvalidArgumentError):
        caller.parameters.read(addressof(array), 1)


def test_attributes_of_a_buffer_can_be_read(caller):
    attributes = caller.made("BufferAttributesNew")
    caller("BufferAttributesSetMemoryType", attributes, 1)
    caller("BufferAttributesSetMemoryTypeId", attributes, 2)
    caller("BufferAttributesSetByteSize", attributes, 3)
    caller("BufferAttributesSetCudaIpcHandle", attributes, 4)

    assert caller.asked("BufferAttributesMemoryType", attributes, c_int32) == 1
    assert caller.asked("BufferAttributesMemoryTypeId", attributes) == 2
    assert caller.asked("BufferAttributesByteSize", attributes) == 3
    assert caller.asked("BufferAttributesCudaIpcHandle", attributes) == 4
    caller("BufferAttributesDelete", attributes)
    with pytest.raises(InvalidArgumentError):
        caller("BufferAttributesDelete", attributes)


def test_text_of_a_name_is_kept_until_there_is_another():
    texts = Texts()
    first = texts.address("id", "a")

    assert texts.address("id", "a") == first
    assert texts.address("other", "b") != first
    assert text(first) == "a"
    assert text(texts.address("id", "c")) == "c"


def test_error_whose_text_is_not_utf_8_is_not_lost():
    errors = Errors()
    handle = errors.new(1, "bad \ud800")

    assert text(exported(errors)["TRITONSERVER_ErrorMessage"](handle)) == "bad \\ud800"


def test_arguments_of_a_histogram_are_missed_in_tritons_words(caller):
    perform = ProcessMetrics().perform
    caller.functions |= exported(MetricFunctions(perform, perform, caller.parameters))
    family = caller.made("MetricFamilyNew", 2, b"sizes", b"text")
    empty = caller.made("MetricArgsNew")

    with pytest.raises(InvalidArgumentError, match="Bucket boundaries not found in Metric args"):
        caller.made("MetricNewWithArgs", family, 0, 0, 0)
    with pytest.raises(InvalidArgumentError, match="Metric args not set to histogram kind"):
        caller.made("MetricNewWithArgs", family, 0, 0, empty)
    caller("MetricArgsDelete", empty)
    caller("MetricArgsDelete", 0)  # nothing, as in C
