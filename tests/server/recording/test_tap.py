# SPDX-License-Identifier: Apache-2.0
"""Which requests are copied, what is copied of them, and that nothing is without room."""

from __future__ import annotations

import asyncio
import json

import pytest

from pytriton.base.dtypes import BY_NAME
from pytriton.base.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
)
from pytriton.base.messages import InferRequest, InferResponse, InferTensor
from pytriton.protocol.recording import (
    Exchange,
    RecordedTensor,
    RecordingEnd,
    RecordingHead,
    RecordReader,
)
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.engine import Engine
from pytriton.serving.server.recording import tap as tap_module
from pytriton.serving.server.recording.recording import Recordings
from pytriton.serving.server.recording.tap import (
    EngineTap,
    ExchangeChoice,
    ExchangeQueue,
    TimeBudget,
)
from pytriton.testing import FakeClock

FP32 = BY_NAME["FP32"]


class KeepingSink:
    def __init__(self):
        self.events = []

    def on_response(self, response, *, final):
        self.events.append((response, final))

    def on_error(self, error, *, final=True):
        self.events.append((error, final))

    def on_refused(self, error):
        self.events.append((error, True))


class FailingSink(KeepingSink):
    def on_response(self, response, *, final):
        raise InternalError("the client is gone")


def tapped(max_bytes=1 << 20, **choice):
    engine, observers = Engine(), []
    queue = ExchangeQueue(ExchangeChoice(**choice), max_bytes)
    tap = EngineTap(engine, observers)
    tap.add(queue)
    return engine, tap, queue


def request(model="m", size=8, **changes):
    data = bytearray(each % 256 for each in range(size))
    return InferRequest(model, {"x": InferTensor("x", FP32, (size // 4,), data)}, **changes)


def response(data=b"\0\0\x80\x3f"):
    return InferResponse("m", "1", "", [InferTensor("y", FP32, (1,), memoryview(data))])


def exchanges(queue):
    return [exchange for exchange, _ in queue.waiting]


def test_engine_without_consumers_has_no_tap():
    engine, tap, queue = tapped()

    assert engine.tap is tap
    tap.remove(queue)
    tap.remove(queue)
    assert engine.tap is None


def test_request_is_passed_on_with_its_answer():
    _, tap, queue = tapped()
    sent, sink = request(id="i", received_ns=5), KeepingSink()
    inference = Inference(sent, sink)
    tap.observe(inference)
    answer = response()
    inference.sink.on_response(answer, final=True)

    assert sink.events == [(answer, True)]
    (exchange,) = exchanges(queue)
    assert (exchange.model, exchange.id, exchange.arrived_ns) == ("m", "i", 5)
    assert exchange.inputs == [RecordedTensor("x", "FP32", (2,), bytes(range(8)))]
    assert exchange.responses[0].outputs == [RecordedTensor("y", "FP32", (1,), b"\0\0\x80\x3f")]


def test_copy_does_not_change_with_the_memory_of_the_request():
    _, tap, queue = tapped()
    sent = request()
    inference = Inference(sent, KeepingSink())
    tap.observe(inference)
    sent.inputs["x"].data[:] = bytes(8)
    inference.sink.on_response(response(), final=True)

    assert exchanges(queue)[0].inputs[0].data == bytes(range(8))


def test_refused_and_failed_requests_are_recorded_with_their_errors():
    engine, _, queue = tapped()
    sink = KeepingSink()
    engine.submit(Inference(request("unknown"), sink))

    ((error, is_final),) = sink.events
    assert is_final
    (exchange,) = exchanges(queue)
    assert exchange.responses[0].error == error.message
    assert exchange.has_failed


def test_request_that_is_submitted_again_is_copied_once():
    _, tap, queue = tapped()
    inference = Inference(request(), KeepingSink())
    tap.observe(inference)
    tap.observe(inference)
    inference.sink.on_response(response(), final=True)

    assert queue.taken_count == 1


def test_calls_of_models_are_not_copied():
    _, tap, queue = tapped()
    inference = Inference(request(call_depth=1), KeepingSink())
    tap.observe(inference)

    assert isinstance(inference.sink, KeepingSink)
    assert queue.used_bytes == 0


def test_response_that_cannot_be_delivered_is_an_error_for_its_caller_as_before():
    _, tap, queue = tapped()
    inference = Inference(request(), FailingSink())
    tap.observe(inference)
    with pytest.raises(InternalError):
        inference.sink.on_response(response(), final=True)
    inference.sink.on_error(InternalError("the client is gone"))

    assert queue.taken_count == 1


def test_without_room_nothing_is_copied_and_the_drop_is_counted():
    _, tap, queue = tapped(max_bytes=4000)
    inferences = [Inference(request(size=800), KeepingSink()) for _ in range(3)]
    for inference in inferences:
        tap.observe(inference)

    assert queue.dropped_count == 1
    assert isinstance(inferences[2].sink, KeepingSink)


def test_response_without_room_drops_the_exchange_and_frees_its_room():
    _, tap, queue = tapped(max_bytes=4000)
    sink = KeepingSink()
    inference = Inference(request(), sink)
    tap.observe(inference)
    inference.sink.on_response(response(bytes(8000)), final=True)

    assert len(sink.events) == 1
    assert (queue.taken_count, queue.dropped_count, queue.used_bytes) == (0, 1, 0)


def test_room_is_free_again_when_the_consumer_is_done():
    _, tap, queue = tapped(max_bytes=4000)
    for _ in range(10):
        inference = Inference(request(size=800), KeepingSink())
        tap.observe(inference)
        inference.sink.on_response(response(), final=True)
        queue.release(queue.waiting.popleft()[1])

    assert (queue.taken_count, queue.dropped_count, queue.used_bytes) == (10, 0, 0)


def test_share_is_taken_evenly_and_only_of_the_models():
    choice = ExchangeChoice(["a"], 0.25)
    taken = [choice.takes("a", 0) for _ in range(8)]

    assert taken == [False, False, False, True] * 2
    assert not choice.takes("b", 0)


def test_sequences_are_taken_whole_or_not():
    choice = ExchangeChoice((), 0.5)
    taken = {each: {choice.takes("a", each) for _ in range(3)} for each in range(1, 100)}

    assert all(len(answers) == 1 for answers in taken.values())
    assert 20 < sum(answers == {True} for answers in taken.values()) < 80


@pytest.mark.parametrize("share", [1.0, 0.5, 0.3, 0.1, 0.01])
def test_share_of_requests_that_come_together_is_that_of_single_ones(share):
    single, together = ExchangeChoice((), share), ExchangeChoice((), share)
    for count in [1, 2, 7, 16, 100, 3, 250] * 3:
        places = [index for index in range(count) if single.takes("m", 0)]

        assert len(together.takes_of("m", count)) in {len(places) - 1, len(places), len(places) + 1}
        assert all(0 <= index < count for index in together.takes_of("m", 0) or places)


def test_places_of_chosen_requests_are_different_ones_of_the_chunk():
    choice = ExchangeChoice(["m"], 0.3)
    chosen = [choice.takes_of("m", count) for count in (10, 1, 5, 200)]

    assert sum(map(len, chosen)) == 64
    assert all(len(set(each)) == len(each) for each in chosen)
    assert all(0 <= index < 200 for index in chosen[3])
    assert choice.takes_of("other", 10) == ()


def test_budget_bounds_the_share_of_time_that_copies_take(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(tap_module, "time", clock)
    budget = TimeBudget(0.02, burst_ns=1_000_000)
    spent_s = 0.0
    for _ in range(10_000):
        clock.sleep(0.001)
        if not budget.is_spent:
            budget.spend(100_000)
            spent_s += 0.0001

    assert 0.19 < spent_s < 0.21


def test_time_of_another_thread_counts_too(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(tap_module, "time", clock)
    budget = TimeBudget(0.5, burst_ns=1_000_000)
    budget.elsewhere_ns += 5_000_000

    assert budget.is_spent
    clock.sleep(0.01)
    assert not budget.is_spent


def test_request_for_which_there_is_no_time_is_dropped_and_counted():
    _, tap, queue = tapped()
    queue.budget = TimeBudget(1e-9, burst_ns=0)
    queue.budget.spend(10**12)
    inference = Inference(request(), KeepingSink())
    tap.observe(inference)

    assert isinstance(inference.sink, KeepingSink)
    assert queue.dropped_count == 1


# Recordings


def fetch_all(recordings, recording_id, loop):
    reader, offset, records = RecordReader(), 0, []
    while not (records and isinstance(records[-1], RecordingEnd)):
        body = json.dumps({"id": recording_id, "offset": offset}).encode()
        part = loop.run_until_complete(recordings.do("fetch", body))
        offset += len(part)
        records += reader.feed(part)
    return records


@pytest.fixture
def loop():
    running = asyncio.new_event_loop()
    yield running
    running.run_until_complete(running.shutdown_default_executor())
    running.close()


def started(loop, **wanted):
    engine = Engine()
    tap = EngineTap(engine, [])
    recordings = Recordings(tap, "here", loop)
    status = loop.run_until_complete(recordings.do("start", json.dumps(wanted).encode()))
    return recordings, tap, status["id"]


def serve(tap, count=1, **changes):
    for _ in range(count):
        inference = Inference(request(**changes), KeepingSink())
        tap.observe(inference)
        inference.sink.on_response(response(), final=True)


def test_recording_ends_after_its_requests(loop):
    recordings, tap, recording_id = started(loop, requests=2, redact=["y"])
    serve(tap, 3)
    head, *between, end = fetch_all(recordings, recording_id, loop)

    assert isinstance(head, RecordingHead)
    assert [each.number for each in between] == [0, 1]
    assert between[0].responses[0].outputs[0].is_redacted
    assert end == RecordingEnd(reason="the limit of requests was reached", exchanges=2)
    assert tap._engine.tap is None


def test_recording_stays_below_its_size(loop):
    recordings, tap, recording_id = started(loop, bytes=10_000)
    serve(tap, 20, size=4000)
    records = fetch_all(recordings, recording_id, loop)

    assert 1 <= sum(isinstance(each, Exchange) for each in records) <= 2
    assert records[-1].reason == "the size limit was reached"


def test_part_can_be_fetched_again_until_a_later_one_was_asked_for(loop):
    recordings, tap, recording_id = started(loop, requests=1)
    serve(tap)
    body = json.dumps({"id": recording_id}).encode()
    parts = [loop.run_until_complete(recordings.do("fetch", body)) for _ in range(2)]

    assert parts[0] == parts[1] != b""
    later = json.dumps({"id": recording_id, "offset": len(parts[0])}).encode()
    loop.run_until_complete(recordings.do("fetch", later))
    with pytest.raises(InvalidArgumentError, match="expected an offset"):
        loop.run_until_complete(recordings.do("fetch", body))


def test_there_is_one_recording_at_a_time(loop):
    recordings, _, recording_id = started(loop)
    with pytest.raises(AlreadyExistsError):
        loop.run_until_complete(recordings.do("start", b"{}"))
    stop = json.dumps({"id": recording_id, "reason": "disk"}).encode()
    status = loop.run_until_complete(recordings.do("stop", stop))

    assert not status["running"]
    assert "disk" in status["reason"]
    assert loop.run_until_complete(recordings.do("start", b"{}"))["running"]


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{", b'{"share": 2}', b'{"path": "/etc/passwd"}', b'{"seconds": 0}', b"\xff"],
)
def test_wrong_requests_for_recordings_are_refused(loop, body):
    recordings = Recordings(EngineTap(Engine(), []), "here", loop)
    with pytest.raises(InvalidArgumentError):
        loop.run_until_complete(recordings.do("start", body))


def test_unknown_recording_is_not_found(loop):
    recordings, _, _ = started(loop)
    for action in ("fetch", "stop"):
        with pytest.raises(NotFoundError):
            loop.run_until_complete(recordings.do(action, b'{"id": "x"}'))


def test_recording_that_nobody_fetches_ends_and_frees_its_memory():
    async def run():
        tap = EngineTap(Engine(), [])
        recordings = Recordings(tap, "here", asyncio.get_running_loop())
        await recordings.do("start", b'{"seconds": 1e6}')
        serve(tap)
        await asyncio.sleep(100)
        return tap, recordings, await recordings.do("status", b"")

    tap, recordings, status = FakeClock().run(run())

    assert status == {}
    assert tap._engine.tap is None
    texts = "".join(family.text() for family in recordings.families())
    assert 'nv_recording_end_count{reason="gone"} 1' in texts
    assert "nv_recording_request_count 1" in texts


def test_recording_that_ended_has_metrics_and_a_server_without_one_has_none(loop):
    assert list(Recordings(EngineTap(Engine(), []), "here", loop).families()) == []
    recordings, tap, recording_id = started(loop, requests=1)
    serve(tap)
    fetch_all(recordings, recording_id, loop)
    texts = "".join(family.text() for family in recordings.families())

    assert "nv_recording_running 0" in texts
    assert 'nv_recording_end_count{reason="requests"} 1' in texts
