# SPDX-License-Identifier: Apache-2.0
"""Shared memory of clients: a server that is right passes, and every planted mistake is found."""

from __future__ import annotations

import pytest

from pytriton.testing import FakeClock
from tests.workload import models
from tests.workload.calls import Call, End, Kind, MemoryAct, Place, Port, Region, Response
from tests.workload.oracle import Cause, Oracle

SIZE = 256
REGION = Region("/memory", 8, 200)
OUT = Place("name", 32, 20)  # of which the output needs 16
IN = Place("name", 0, 16)


class FakeMemory:
    """Shared memory that is a bytearray."""

    def __init__(self, key: str, size: int) -> None:
        self.data = bytearray(size)
        self.has_name = True

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.data[offset : offset + size])

    def write(self, offset: int, data: bytes) -> None:
        self.data[offset : offset + len(data)] = data

    def resize(self, size: int) -> None:
        self.data[size:] = bytes(max(0, size - len(self.data)))

    def unlink(self) -> None:
        self.has_name = False


class World:
    """Clients of a server that a test plays, with one object of shared memory."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.oracle = Oracle(self.clock, served=models.repository_models())
        self.memories: list[FakeMemory] = []
        self.numbers = iter(range(1, 1000))

    def memory(self, key: str, size: int) -> FakeMemory:
        self.memories.append(FakeMemory(key, size))
        return self.memories[-1]

    def act(self, size: int | None, *, only_makes: bool = False) -> None:
        acts = (MemoryAct("memory", size, only_makes),)
        self.oracle.prepare(Call(0, Kind.LIVE, Port.HTTP, acts=acts), self)

    def begin(self, kind: Kind = Kind.INFER, **settings) -> Call:
        call = Call(next(self.numbers), kind, Port.HTTP, **settings)
        if kind is Kind.INFER:
            call.model, call.inputs = "double", models.rows_of(call.number)
        self.clock.advance(1)
        call.outcome.submitted_s = call.outcome.began_s = call.outcome.sent_s = self.clock()
        self.oracle.begin(call)
        return call

    def end(self, call: Call, end: End = End.ANSWERED, status: int = 200, error: str = "") -> Call:
        outcome = call.outcome
        outcome.end, outcome.status, outcome.error, outcome.ends = end, status, error, 1
        outcome.ended_s = self.clock()
        if end is End.ANSWERED and call.kind is Kind.INFER:
            ((output,),) = models.ANSWERS["double"](call)
            raw = b"" if "OUT" in call.places else output.raw
            outputs = (output._replace(raw=raw),)
            outcome.responses.append(Response(self.clock(), call.id, call.model, "1", outputs))
        self.oracle.finish(call)
        return call

    def register(self, name: str = "name", region: Region = REGION, **settings) -> Call:
        self.act(SIZE, only_makes=True)
        return self.end(self.begin(Kind.REGISTER, text=name, region=region), **settings)

    def infer(self, **places: Place) -> Call:
        return self.begin(places=places or {"IN": IN, "OUT": OUT})

    def write_output(self, call: Call, at: int = REGION.offset + OUT.offset) -> None:
        ((output,),) = models.ANSWERS["double"](call)
        self.memories[0].write(at, output.raw)

    def status(self, name: str = "", *regions: tuple[str, Region]) -> Call:
        call = self.begin(Kind.REGIONS, text=name)
        listed = [{"name": each, **region._asdict()} for each, region in regions]
        call.outcome.responses.append(Response(self.clock(), document=listed))
        return self.end(call)

    @property
    def sentences(self) -> list[str]:
        self.oracle.check_memory()
        return [finding.sentence for finding in self.oracle.findings]


@pytest.fixture
def world():
    return World()


def test_inputs_are_in_their_places_and_outputs_are_read_from_theirs(world):
    world.register()
    call = world.infer()
    written = world.memories[0].read(REGION.offset, 16)
    world.write_output(call)
    world.end(call)

    assert written == call.inputs[0].raw
    assert call.outcome.responses[0].outputs == models.ANSWERS["double"](call)[0]
    assert world.sentences == []


def test_output_that_was_not_written_is_found(world):
    world.register()
    world.end(world.infer())

    assert "expected [('OUT', (1, 4)" in world.sentences[0]


@pytest.mark.parametrize("at", [REGION.offset + OUT.offset - 1, REGION.offset + OUT.offset + 5, 0])
def test_output_that_was_written_elsewhere_is_found(world, at):
    world.register()
    call = world.infer()
    world.write_output(call)
    world.write_output(call, at)
    world.end(call)

    assert world.sentences != []


def test_output_that_is_written_again_after_the_answer_is_found(world):
    world.register()
    call = world.infer()
    world.write_output(call)
    world.end(call)
    world.write_output(call)

    assert "an object of shared memory was written" in world.sentences[0]


def test_output_of_a_request_that_failed_is_found(world):
    world.register()
    call = world.infer(IN=IN, OUT=OUT._replace(byte_size=15))
    error = "should be at least 16 bytes"
    world.write_output(call)
    world.end(call, End.ERROR, 500, error)

    assert "was written after an error" in world.sentences[0]


@pytest.mark.parametrize("how_much", [0, 5, 16])
def test_request_whose_client_left_may_write_its_output_at_any_time(world, how_much):
    world.register()
    call = world.infer()
    world.end(call, End.CUT)
    ((output,),) = models.ANSWERS["double"](call)
    world.memories[0].write(REGION.offset + OUT.offset, output.raw[:how_much])

    assert world.sentences == []


def test_request_whose_client_left_may_not_write_anything_else(world):
    world.register()
    world.end(world.infer(), End.CUT)
    world.memories[0].write(REGION.offset + OUT.offset, b"something else")

    assert "neither" in world.sentences[0]


@pytest.mark.parametrize(
    "place, status, error",
    [
        (OUT._replace(region="other"), 404, "Unable to find shared memory region: 'other'"),
        (OUT._replace(offset=200), 400, "Invalid offset for shared memory region: 'name'"),
        (OUT._replace(offset=185), 400, "Invalid offset + byte size for shared memory region: 'n'"),
        (OUT._replace(offset=(1 << 64) - 1), 400, "Invalid offset for shared memory region: 'n'"),
        (OUT._replace(byte_size=15), 500, "(15 bytes) should be at least 16 bytes"),
    ],
)
def test_wrong_place_has_to_be_refused_with_its_error(world, place, status, error):
    world.register()
    world.end(world.infer(OUT=place), End.ERROR, status, error)
    assert world.sentences == []
    world.end(world.infer(OUT=place))
    world.end(world.infer(OUT=OUT), End.ERROR, status, error)

    assert len(world.sentences) >= 2


def test_region_is_unknown_before_and_after_its_registration(world):
    missing = "Unable to find shared memory region: 'name'"
    world.end(world.infer(), End.ERROR, 404, missing)
    world.register()
    world.end(world.begin(Kind.UNREGISTER, text="name"))
    world.end(world.infer(), End.ERROR, 404, missing)
    assert world.sentences == []
    world.end(world.infer())

    assert "a call was answered whose tensors are nowhere" in world.sentences


@pytest.mark.parametrize("count, is_wrong", [(0, False), (1, True)])
def test_stream_writes_as_many_outputs_as_it_has_responses(world, count, is_wrong):
    world.register()
    world.act(REGION.offset)
    call = Call(99, Kind.STREAM, Port.GRPC, "stream", places={"OUT": OUT})
    call.inputs = models.stream_inputs(99, count)
    world.oracle.begin(call)

    assert world.oracle.regions.is_answer_wrong(call) == is_wrong


def test_request_that_began_before_the_region_was_given_up_may_find_it_or_not(world):
    world.register()
    calls = [world.infer(), world.infer(OUT=OUT._replace(offset=100))]
    unregister = world.begin(Kind.UNREGISTER, text="name")
    world.write_output(calls[0])
    world.end(calls[0])
    world.end(unregister)
    world.end(calls[1], End.ERROR, 404, "Unable to find shared memory region: 'name'")

    assert world.sentences == []


def test_name_whose_registration_nobody_saw_may_be_there_or_not(world):
    world.register(end=End.LOST)
    fault = world.oracle.fault(Cause.NETWORK_CUT)
    world.oracle.over(fault)
    call = world.infer()
    world.write_output(call)
    world.end(call)
    world.end(world.infer(OUT=OUT), End.ERROR, 404, "Unable to find shared memory region: 'name'")

    lost = "nothing explains why the connection or the stream was lost"
    assert [each for each in world.sentences if each != lost] == []


@pytest.mark.parametrize(
    "region, status, error",
    [
        (REGION._replace(key="nobody"), 500, "Unable to open shared memory region: 'nobody'"),
        (REGION._replace(byte_size=0), 400, "failed to register 'name': invalid args"),
        (REGION._replace(byte_size=SIZE), 400, "failed to register 'name': invalid args"),
        (REGION._replace(key="psm_1"), 400, "as the key contains the reserved prefix 'psm_'"),
    ],
)
def test_wrong_registration_has_to_be_refused_with_its_error(world, region, status, error):
    world.register(region=region, end=End.ERROR, status=status, error=error)
    assert world.sentences == []
    world.register(region=region)
    world.register("another", end=End.ERROR, status=status, error=error)

    assert len(world.sentences) == 2


def test_name_can_be_registered_once(world):
    error = "shared memory region 'name' already in manager"
    world.register()
    world.register(end=End.ERROR, status=400, error=error)
    assert world.sentences == []
    world.register()

    assert world.sentences == ["a name was registered twice"]


def test_status_has_to_list_what_is_registered(world):
    world.register()
    world.status("", ("name", REGION))
    world.status("name", ("name", REGION))
    assert world.sentences == []
    world.status("")
    world.status("", ("name", REGION._replace(offset=0)))
    world.status("", ("name", REGION), ("another", REGION))

    assert len(world.sentences) == 3


def test_object_that_shrinks_explains_errors_and_any_values(world):
    world.register()
    calls = [world.infer(), world.infer(OUT=OUT._replace(offset=100))]
    world.act(10)
    world.end(calls[0])
    smaller = "shared memory region 'name' was made smaller after it was registered"
    world.end(calls[1], End.ERROR, 400, smaller)
    world.act(SIZE)
    call = world.infer()
    world.write_output(call)
    world.end(call)
    assert world.sentences == []
    world.end(world.infer(OUT=OUT), End.ERROR, 400, smaller)

    assert len(world.sentences) == 1


@pytest.mark.parametrize("error", ["was made smaller", "input byte size mismatch"])
def test_wrong_size_of_an_input_and_an_object_that_shrank_explain_each_other(world, error):
    world.register()
    world.act(10)
    world.end(world.infer(IN=IN._replace(byte_size=6)), End.ERROR, 400, error)

    assert world.sentences == []


def test_object_without_a_name_is_still_used_and_a_new_one_is_not(world):
    world.register()
    world.act(None)
    world.act(SIZE)
    call = world.infer()
    world.write_output(call)
    world.end(call)
    assert world.sentences == []
    assert [each.has_name for each in world.memories] == [False, True]
    world.memories[1].write(50, b"written")

    assert len(world.sentences) == 1


def test_front_end_without_a_descriptor_does_not_know_a_region(world):
    fault = world.oracle.fault(Cause.EXHAUSTED)
    world.register()
    world.oracle.over(fault)
    world.end(world.infer(), End.ERROR, 404, "Unable to find shared memory region: 'name'")
    world.status("")

    assert world.sentences == []
