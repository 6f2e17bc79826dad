# SPDX-License-Identifier: Apache-2.0
"""A request with tensors in regions, between a front end and the engine, without threads."""

from __future__ import annotations

import gc
import weakref

import pytest

from pytriton.base import dtypes
from pytriton.base.errors import (
    UNEXPECTED,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from pytriton.base.messages import InferRequest, InferResponse, InferTensor
from pytriton.base.model_spec import ModelTensor
from pytriton.protocol.shared_memory import RegionPlace
from pytriton.serving.server.shared_memory.region_request import (
    SMALL_BYTES,
    ReadBudget,
    RegionRequest,
)
from pytriton.serving.server.shared_memory.regions import Region, RegionTable
from tests.fakes import model_spec
from tests.server.shared_memory.test_regions import FakeFile

LARGE = SMALL_BYTES + 1


class LargeFile(FakeFile):
    def __init__(self, size):
        super().__init__(0)
        self.content = bytearray(size)


def spec_with(dtype):
    tensor = ModelTensor(name="x", dtype=dtype, dims=(-1,), shape=(-1,), has_variable_dims=True)
    return model_spec(max_batch_size=0, inputs={"x": tensor})


class Model:
    spec = spec_with(dtypes.UINT8)

    def body_memory(self, size, header_bytes):
        return memoryview(bytearray(size))


class Handle:
    def __init__(self):
        self.calls = []

    def cancel(self):
        self.calls.append("cancel")

    def pause(self):
        self.calls.append("pause")

    def resume(self):
        self.calls.append("resume")


class Sink:
    def __init__(self):
        self.events = []
        self.failure = None

    def on_response(self, response, *, final):
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        data = None if response is None else [bytes(each.data) for each in response.outputs]
        self.events.append((data, final))

    def on_error(self, error, *, final=True):
        self.events.append((error.message, final))

    def on_refused(self, error):
        self.events.append(("refused", error.message))


class Scene:
    """A table with the regions "in" and "out", and copies that are made when the test says so."""

    def __init__(self, size=100):
        self.sink = Sink()
        self.source, self.target = LargeFile(size), LargeFile(size)
        self.table = RegionTable()
        self.table.add(Region("in", "k", 0, size, self.source))
        self.table.add(Region("out", "k", 0, size, self.target))
        self.handle = Handle()
        self.submitted = []
        self.later = []
        self.budget = ReadBudget(4 * size)
        self.model = Model()

    def submit(self, request, sink):
        self.submitted.append(request)
        return self.handle

    def run_later(self, work, then):
        self.later.append((work, then))

    def copy(self):
        work, then = self.later.pop(0)
        error = None
        try:
            work()
        except (InvalidArgumentError, InternalError) as raised:
            error = raised
        then(error)

    def begin(self, place=None, output=None, shape=None):
        place = place or RegionPlace("in", 0, 4)
        tensor = InferTensor("x", dtypes.UINT8, shape or (place.byte_size,), place)
        places = {} if output is None else {"y": output}
        made = RegionRequest(
            InferRequest("m", {"x": tensor}),
            places,
            self.sink,
            self.submit,
            self.run_later,
            self.budget,
        )
        made.start(self.table, self.model)
        return made


def response(data, name="y"):
    return InferResponse("m", "1", "", [InferTensor(name, dtypes.UINT8, (len(data),), data)])


@pytest.fixture
def scene():
    return Scene(LARGE)


def test_small_input_is_read_at_once():
    scene = Scene()
    scene.source.content[8:12] = b"abcd"

    scene.begin(RegionPlace("in", 8, 4))

    assert bytes(scene.submitted[0].inputs["x"].data) == b"abcd"


def test_large_input_is_read_in_a_thread_and_submitted_then():
    scene = Scene(2 * LARGE)
    scene.source.content[-1] = 7
    told = []

    request = scene.begin(RegionPlace("in", LARGE, LARGE))
    request.on_submitted = lambda: told.append(len(scene.submitted))
    assert (request.is_reading, scene.submitted) == (True, [])
    scene.copy()

    assert scene.submitted[0].inputs["x"].data[-1] == 7
    assert (request.is_reading, told) == (False, [1])


def test_unknown_regions_are_refused_before_anything_is_read():
    with pytest.raises(NotFoundError, match="'other'"):
        Scene().begin(RegionPlace("other", 0, 4))
    with pytest.raises(NotFoundError, match="'other'"):
        Scene().begin(output=RegionPlace("other", 0, 4))


def test_nothing_is_read_for_a_request_that_does_not_fit_its_model(scene):
    scene.model.body_memory = lambda *_: pytest.fail("memory was allocated")

    with pytest.raises(InvalidArgumentError, match=f"Expected 4, got {LARGE}"):
        scene.begin(RegionPlace("in", 0, LARGE), shape=(4,))


def test_strings_are_not_counted_before_they_are_read():
    scene = Scene()
    scene.model.spec = spec_with(dtypes.BYTES)
    scene.source.content[:5] = b"\1\0\0\0a"
    place = RegionPlace("in", 0, 5)
    tensor = InferTensor("x", dtypes.BYTES, (1,), place)
    request = InferRequest("m", {"x": tensor})

    made = RegionRequest(request, {}, scene.sink, scene.submit, scene.run_later, scene.budget)
    made.start(scene.table, scene.model)

    assert (bytes(tensor.data), tensor.strings) == (b"\1\0\0\0a", None)


def test_inputs_take_no_more_memory_at_a_time_than_allowed(scene):
    scene.budget = ReadBudget(2 * LARGE)
    whole = RegionPlace("in", 0, LARGE)
    cancelled = scene.begin(whole)
    answered = scene.begin(whole)
    with pytest.raises(UnavailableError, match=f"{2 * LARGE} are in use"):
        scene.begin(whole)

    cancelled.cancel()
    scene.copy()
    scene.begin(whole)
    scene.copy()
    answered.on_response(None, final=True)
    scene.begin(whole)

    with pytest.raises(UnavailableError):
        scene.begin(whole)


def test_inputs_that_cannot_be_read_take_no_memory():
    scene = Scene(4)
    scene.budget = ReadBudget(4)
    content, scene.source.content = scene.source.content, bytearray()
    with pytest.raises(InvalidArgumentError, match="made smaller"):
        scene.begin()
    scene.source.content = content

    scene.begin()

    assert len(scene.submitted) == 1


def test_large_input_that_has_shrunk_meanwhile_is_refused(scene):
    scene.begin(RegionPlace("in", 0, LARGE))
    scene.source.content.clear()

    scene.copy()

    (kind, message), *rest = scene.sink.events
    assert (kind, rest, scene.submitted) == ("refused", [], [])
    assert "made smaller after it was registered" in message


def test_request_that_cannot_be_submitted_after_it_was_read_is_answered_and_takes_no_memory(scene):
    told = []

    def submit(request, sink):
        raise MemoryError

    scene.submit = submit
    request = scene.begin(RegionPlace("in", 0, LARGE))
    request.on_submitted = lambda: told.append(True)
    scene.copy()

    assert scene.sink.events == [("the server has no memory left", True)]
    assert told == [True]
    scene.budget.take(4 * LARGE)


def test_unexpected_failure_of_a_response_is_logged_and_tells_the_client_nothing(scene, caplog):
    request = scene.begin(output=RegionPlace("out", 0, LARGE))
    request.on_response(response(bytes(LARGE)), final=True)
    scene.sink.failure = KeyError("a secret")

    scene.copy()

    assert scene.sink.events == [(UNEXPECTED, True)]
    assert "while it served a request with shared memory" in caplog.text


def test_request_that_was_cancelled_while_it_was_read_is_not_submitted(scene):
    request = scene.begin(RegionPlace("in", 0, LARGE))

    request.cancel()
    scene.copy()

    assert (scene.submitted, scene.sink.events) == ([], [])


def test_output_goes_to_its_region_and_has_no_data_in_the_response():
    scene = Scene()
    request = scene.begin(output=RegionPlace("out", 10, 20))

    request.on_response(response(b"1234"), final=True)

    assert scene.sink.events == [([b""], True)]
    assert scene.target.content[10:15] == b"1234\0"


def test_other_outputs_keep_their_data():
    scene = Scene()
    request = scene.begin(output=RegionPlace("out", 0, 20))

    request.on_response(response(b"1234", "z"), final=True)

    assert scene.sink.events == [([b"1234"], True)]


def test_output_that_does_not_fit_is_an_error_and_nothing_is_written():
    scene = Scene()
    request = scene.begin(output=RegionPlace("out", 0, 3))

    request.on_response(response(b"1234"), final=False)
    request.on_response(response(b"123"), final=True)

    message = (
        "shared memory size specified with the request for output 'y' (3 bytes) should be at "
        "least 4 bytes to hold the results"
    )
    assert scene.sink.events == [(message, False), ([b""], True)]
    assert scene.target.content[:4] == b"123\0"


def test_responses_and_errors_keep_their_order_while_one_is_written(scene):
    request = scene.begin(output=RegionPlace("out", 0, LARGE))

    request.on_response(response(bytes(LARGE)), final=False)
    request.on_response(response(b"b"), final=False)
    request.on_error(InternalError("c"), final=False)
    request.on_response(None, final=True)
    assert scene.sink.events == []
    scene.copy()

    assert scene.sink.events == [([b""], False), ([b""], False), ("c", False), (None, True)]


def test_model_waits_while_its_responses_are_behind(scene):
    request = scene.begin(output=RegionPlace("out", 0, LARGE))

    for _ in range(4):
        request.on_response(response(bytes(LARGE)), final=False)
    assert scene.handle.calls == ["pause"]
    request.pause()  # the client is slow, too
    scene.copy()
    scene.copy()
    scene.copy()
    assert scene.handle.calls == ["pause"]
    request.resume()

    assert scene.handle.calls == ["pause", "resume"]


def test_failure_of_a_write_ends_only_its_response(scene):
    request = scene.begin(output=RegionPlace("out", 0, LARGE))
    request.on_response(response(bytes(LARGE)), final=False)
    request.on_response(response(b"b"), final=True)
    content, scene.target.content = scene.target.content, bytearray()

    work, then = scene.later.pop(0)
    with pytest.raises(InvalidArgumentError) as caught:
        work()
    scene.target.content = content
    then(caught.value)

    assert [final for _, final in scene.sink.events] == [False, True]
    assert "made smaller" in scene.sink.events[0][0]


def test_response_that_the_front_end_cannot_send_ends_the_request(scene):
    request = scene.begin(output=RegionPlace("out", 0, LARGE))
    request.on_response(response(bytes(LARGE)), final=False)
    request.on_response(response(b"b"), final=True)
    scene.sink.failure = InternalError("cannot be sent")

    scene.copy()

    assert scene.sink.events == [("cannot be sent", True)]
    assert scene.handle.calls == ["cancel"]


def test_ended_request_keeps_nothing():
    scene = Scene()
    sink, handle = weakref.ref(scene.sink), weakref.ref(scene.handle)
    submit = scene.submit
    scene.submit = lambda request, sink, exchange=scene.sink: submit(request, sink)
    request = scene.begin(output=RegionPlace("out", 0, 20))

    request.on_response(response(b"1"), final=True)
    gc.disable()
    try:
        scene.sink = scene.handle = scene.submit = None
        assert (sink(), handle()) == (None, None)
    finally:
        gc.enable()


def test_pause_before_the_request_is_submitted_counts(scene):
    request = scene.begin(RegionPlace("in", 0, LARGE))

    request.pause()
    scene.copy()

    assert scene.handle.calls == ["pause"]
