# SPDX-License-Identifier: Apache-2.0
"""Requests with GPU memory that repeat: when they are known, and when they are forgotten."""

from __future__ import annotations

import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InternalError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.model_spec import ModelTensor
from pytriton.protocol.shared_memory import RegionPlace
from pytriton.serving.server.shared_memory.known_requests import MAX_KNOWN, KnownRequests
from pytriton.serving.server.shared_memory.regions import DeviceRegion, Region, RegionTable
from tests.fakes import infer_request, model_spec
from tests.server.shared_memory.test_regions import FakeFile

SIZE = 16
PLACES = {"y": RegionPlace("out", 0, SIZE)}


def tensor(name):
    return ModelTensor(
        name=name, dtype=dtypes.UINT8, dims=(-1,), shape=(-1,), has_variable_dims=True
    )


class Model:
    spec = model_spec(max_batch_size=0, inputs={"x": tensor("x")}, outputs={"y": tensor("y")})


class Memory:
    """The regions of a server."""

    def __init__(self):
        self.table = RegionTable()
        for number, name in enumerate(("in", "out")):
            self.table.add(DeviceRegion(name, number, b"", 0, SIZE))


def request_with(place, **fields):
    data = InferTensor("x", dtypes.UINT8, (SIZE,), place)
    return infer_request("m", {"x": data}, uses_regions=True, **fields)


def usual_request(**fields):
    return request_with(RegionPlace("in", 0, SIZE), **fields)


def response_with(data=b"", shape=(SIZE,), name="y", parameters=None):
    output = InferTensor(name, dtypes.UINT8, shape, data)
    return InferResponse("m", "1", "", [output], parameters or {})


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def known(memory):
    return KnownRequests(memory)


def learn(known, key=b"a", times=2, request=None):
    for _ in range(times):
        known.learn(key, Model, request or usual_request(), PLACES, None)


def test_request_is_known_when_it_came_twice(known):
    learn(known, times=1)
    assert known.find(b"a") is None
    learn(known, times=1)

    assert known.find(b"a").spec is Model.spec
    assert known.find(b"b") is None


def test_each_client_gets_a_request_of_its_own(known):
    learn(known, request=usual_request(parameters={"p": 1}))
    first, second = (known.find(b"a").request() for _ in range(2))

    assert first.device.inputs["x"].region == "in"
    assert first.device.outputs["y"].region == "out"
    assert len(first.inputs["x"].data) == SIZE
    first.fields = first.fields.changed(parameters={"p": 2})
    assert second.fields.parameters == {"p": 1}
    assert first.inputs["x"] is not second.inputs["x"]
    assert first.batch_key != second.batch_key


def test_request_is_forgotten_when_a_region_changes(known, memory):
    learn(known)
    memory.table.remove("other")

    assert known.find(b"a") is None
    learn(known)
    assert known.find(b"a") is not None


def test_requests_that_cannot_be_served_are_not_known(known):
    learn(known, b"too large", request=request_with(RegionPlace("in", 8, SIZE)))
    learn(known, b"no region", request=request_with(RegionPlace("no", 0, SIZE)))
    learn(known, b"data", request=request_with(b"x" * SIZE))
    too_short = InferTensor("x", dtypes.UINT8, (SIZE - 1,), RegionPlace("in", 0, SIZE))
    learn(known, b"shape", request=infer_request("m", {"x": too_short}))

    assert len(known) == 4
    assert all(known.find(key) is None for key in (b"too large", b"no region", b"data", b"shape"))


def test_only_requests_with_gpu_memory_and_without_an_id_may_repeat(known, memory):
    memory.table.add(Region("host", "/key", 0, SIZE, FakeFile()))

    assert known.may_repeat(Model, usual_request())
    assert not known.may_repeat(Model, usual_request(id="1"))
    assert not known.may_repeat(Model, request_with(RegionPlace("host", 0, SIZE)))
    assert not known.may_repeat(Model, request_with(b"x"))
    assert not known.may_repeat(Model, infer_request("m", {}))


def test_clients_with_any_number_of_requests_take_no_more_room(known):
    for number in range(MAX_KNOWN + 1):
        learn(known, b"%d" % number, times=1)

    assert len(known) == 1


def test_answer_is_made_once_for_outputs_of_one_shape(known):
    learn(known)
    found = known.find(b"a")
    made = []

    def encode(response):
        made.append(response.outputs[0].shape)
        return made[-1]

    answers = [found.answer_to(response_with(shape=(n,)), encode) for n in (3, 3, 4, 4, 3)]
    assert answers == [(3,), (3,), (4,), (4,), (3,)]
    assert made == [(3,), (4,), (3,)]


def test_answer_with_more_than_outputs_in_regions_is_left_to_others(known):
    learn(known)
    found = known.find(b"a")

    assert found.answer_to(response_with(b"12", name="z"), repr) is None
    assert found.answer_to(response_with(parameters={"p": 1}), repr) is None
    with pytest.raises(InternalError, match="output 'y' was not written"):
        found.answer_to(response_with(b"12"), repr)
