# SPDX-License-Identifier: Apache-2.0
"""One request between an application and the engine, without a server."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace

import pytest

from pytriton.base.dtypes import BYTES, FP32, INT32
from pytriton.base.errors import InvalidArgumentError, UnavailableError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.model_spec import ModelSpec, ModelTensor
from pytriton.inprocess.c_library.exchange import (
    CallerExchange,
    engine_request,
    is_scattered,
    join_inputs,
)
from pytriton.inprocess.c_library.servers import CallerServer
from pytriton.runtime.native_backend.api_table import prototype
from pytriton.runtime.native_backend.caller_requests import CallerInput, CallerRequest
from pytriton.runtime.native_backend.caller_responses import CallerResponses
from pytriton.runtime.native_backend.server_objects import Errors


class Engine:
    """Keeps what it gets, and calls what is posted at once."""

    def __init__(self) -> None:
        self.inferences = []
        self.ended_count = 0
        self.is_closed = False

    def validate(self, request, model) -> None:
        if "bad" in request.inputs:
            raise InvalidArgumentError("bad input")

    def post(self, function, *arguments) -> None:
        if self.is_closed:
            raise UnavailableError("Server exiting")
        function(*arguments)

    def submit(self, model, inference) -> None:
        self.post(self.inferences.append, inference)

    def end_request(self) -> None:
        self.ended_count += 1


class Allocator:
    """Gives and takes memory, and counts."""

    def __init__(self) -> None:
        self.blocks = []
        self.start_count = self.release_count = 0

    def start(self, userp) -> None:
        self.start_count += 1

    def allocate(self, name, size, userp, kept):
        block = ctypes.create_string_buffer(max(1, size))
        self.blocks.append(block)
        place = SimpleNamespace(memory_type=0, memory_type_id=0)
        return SimpleNamespace(address=ctypes.addressof(block), size=size, userp=0, place=place)

    def release(self, buffer) -> None:
        self.release_count += 1


class Rig:
    """A server whose callbacks wait until `deliver`, and a request."""

    def __init__(self) -> None:
        self.calls = []
        self.engine = Engine()
        self.server = SimpleNamespace(
            engine=self.engine, delivery=SimpleNamespace(add=self.calls.append), exchanges=set()
        )
        tensor = ModelTensor(name="IN", dtype=INT32, dims=(-1,), shape=(-1,))
        self.model = SimpleNamespace(
            spec=ModelSpec(
                name="model", version=3, platform="python", max_batch_size=0,
                inputs={"IN": tensor}, outputs={}, required_inputs=frozenset({"IN"}), batcher=None,
            ),
            body_memory=lambda size, _: memoryview(bytearray(size + 8)),
        )  # fmt: skip
        self.events: list[str] = []
        self.responses = CallerResponses(Errors())
        self.allocator = Allocator()
        self.request = request = CallerRequest("model", -1)
        request.handle, request.id = 16, "id"
        self._kept = (prototype("v:pIp")(self._on_response), prototype("v:pIp")(self._on_release))
        addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in self._kept]
        request.respond, request.release = (addresses[0], 5), (addresses[1], 6)

    def _on_response(self, handle, flags, userp) -> None:
        what = "nothing"
        if handle:
            response = self.responses.handles.get(handle)
            what = response.error.message if response.error else f"{len(response.outputs)} outputs"
        self.events.append(f"{what}, flags {flags}, {userp}")

    def _on_release(self, handle, flags, userp) -> None:
        self.events.append(f"released {handle}, {flags}, {userp}, sent {self.request.sent}")

    def exchange(self) -> CallerExchange:
        return CallerExchange(self.request, self.allocator, self.server, self.model, self.responses)

    def sent(self) -> CallerExchange:
        exchange = self.exchange()
        exchange.send()
        return exchange

    def deliver(self, count: int | None = None) -> None:
        for _ in range(len(self.calls) if count is None else count):
            self.calls.pop(0)()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def answer(*outputs: InferTensor) -> InferResponse:
    return InferResponse("model", "3", "id", list(outputs))


def given(dtype, shape, *parts: bytes) -> CallerInput:
    tensor = CallerInput(dtype, shape)
    tensor.parts = [memoryview(part) for part in parts]
    return tensor


def test_callbacks_come_later_and_in_order(rig):
    exchange = rig.sent()
    assert rig.request.sent is exchange
    exchange.on_response(answer(InferTensor("OUT", FP32, (1,), b"1234")), final=False)
    exchange.on_response(None, final=True)

    assert rig.events == []
    rig.deliver()
    assert rig.events == [
        "1 outputs, flags 0, 5",
        "nothing, flags 1, 5",
        "released 16, 1, 6, sent None",
    ]
    assert (rig.allocator.start_count, bytes(rig.allocator.blocks[0])) == (1, b"1234")
    assert rig.engine.ended_count == 1
    assert not rig.server.exchanges


def test_error_of_the_model_is_a_response(rig):
    exchange = rig.sent()
    exchange.on_error(InvalidArgumentError("failed"))
    rig.deliver()

    assert rig.events[0] == "failed, flags 1, 5"
    assert rig.allocator.start_count == 1


def test_refused_request_is_answered(rig):
    exchange = rig.sent()
    exchange.on_refused(UnavailableError("full"))
    rig.deliver()

    assert rig.events == ["full, flags 1, 5", "released 16, 1, 6, sent None"]


def test_request_that_is_not_valid_stays_the_applications(rig):
    rig.request.inputs["bad"] = given(FP32, (1,), b"1234")

    with pytest.raises(InvalidArgumentError, match="bad input"):
        rig.exchange().send()
    assert rig.request.sent is None
    assert not rig.server.exchanges
    assert not rig.calls


def test_request_at_the_end_of_a_server_stays_the_applications(rig):
    rig.engine.is_closed = True

    with pytest.raises(UnavailableError):
        rig.exchange().send()
    assert rig.request.sent is None
    assert not rig.server.exchanges


def test_request_that_the_end_of_a_server_has_answered_is_not_refused_as_well(rig):
    engine = rig.engine
    engine.options, engine.is_over = SimpleNamespace(exit_timeout_s=1), False
    engine.stop = lambda timeout_s: setattr(engine, "is_closed", True)
    rig.server = server = CallerServer(engine)
    server.delivery.start()

    def submit_at_the_end(model, inference):
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        stopping.join()
        raise UnavailableError("Server exiting")

    engine.submit = submit_at_the_end
    rig.exchange().send()

    assert rig.events == ["Server exiting, flags 1, 5", "released 16, 1, 6, sent None"]
    assert not server.exchanges


def test_model_waits_for_an_application_that_is_behind(rig):
    exchange = rig.sent()
    (inference,) = rig.engine.inferences
    paused = []
    inference.owner = SimpleNamespace(
        pause=lambda _: paused.append(True), resume=lambda _: paused.append(False)
    )
    for _ in range(17):
        exchange.on_response(answer(), final=False)
    assert paused == [True]
    rig.deliver(16)
    assert paused == [True]
    rig.deliver(1)

    assert paused == [True, False]


def test_cancel_reaches_the_engine(rig):
    exchange = rig.sent()
    cancelled = []
    rig.engine.inferences[0].owner = SimpleNamespace(cancel=cancelled.append)
    exchange.cancel()

    assert cancelled == rig.engine.inferences
    exchange.on_response(None, final=True)
    exchange.cancel()  # it is over
    assert len(cancelled) == 1


def test_record_has_what_the_application_set(rig):
    request = rig.request
    request.version = 2
    request.inputs["IN"] = given(INT32, (2,), b"12345678")
    request.outputs["OUT"] = None
    request.parameters["p"] = True
    request.priority, request.timeout_us, request.flags, request.correlation_id = 1, 2, 3, "c"

    record = engine_request(request, rig.model)
    assert (record.model_name, record.model_version, record.fields.id) == ("model", "2", "id")
    assert record.inputs["IN"].data is request.inputs["IN"].parts[0]
    assert (record.outputs, record.fields.parameters) == (("OUT",), {"p": True})
    assert (record.fields.priority, record.fields.timeout_us) == (1, 2)
    assert (record.fields.flags, record.fields.correlation_id) == (3, "c")


def test_scattered_input_is_joined_in_memory_of_the_model(rig):
    rig.request.inputs["IN"] = given(INT32, (3,), b"1234", b"56", b"789012")
    record = engine_request(rig.request, rig.model)

    assert is_scattered(record)
    assert len(record.inputs["IN"].data) == 12
    join_inputs(record, rig.model)
    assert bytes(record.inputs["IN"].data) == b"123456789012"
    assert not is_scattered(record)
    rig.model.body_memory = lambda *_: None
    record = engine_request(rig.request, rig.model)
    join_inputs(record, rig.model)
    assert record.inputs["IN"].data == b"123456789012"


def test_scattered_input_is_submitted_whole(rig):
    rig.request.inputs["IN"] = given(INT32, (2,), b"1234", b"5678")
    rig.sent()

    (inference,) = rig.engine.inferences
    assert bytes(inference.request.inputs["IN"].data) == b"12345678"


def test_scattered_input_without_room_is_answered_and_was_never_the_engines(rig):
    def refuse(*_):
        raise UnavailableError("no room")

    rig.model.body_memory = refuse
    rig.request.inputs["IN"] = given(INT32, (2,), b"1234", b"5678")
    rig.sent()
    rig.deliver()

    assert rig.events == ["no room, flags 1, 5", "released 16, 1, 6, sent None"]
    assert rig.engine.ended_count == 0
    assert not rig.server.exchanges


def test_scattered_texts_are_joined_at_once(rig):
    rig.request.inputs["IN"] = given(BYTES, (1,), b"\2\0\0\0", b"ab")

    record = engine_request(rig.request, rig.model)
    assert record.inputs["IN"].data == b"\2\0\0\0ab"


def test_raw_input_is_what_the_model_expects(rig):
    rig.request.inputs["any name"] = given(None, (), b"1234", b"5678")

    record = engine_request(rig.request, rig.model)
    assert (record.inputs["IN"].dtype, record.inputs["IN"].shape) == (INT32, (2,))


def test_input_without_data_is_empty(rig):
    rig.request.inputs["IN"] = given(INT32, (0,))

    assert engine_request(rig.request, rig.model).inputs["IN"].data == b""
