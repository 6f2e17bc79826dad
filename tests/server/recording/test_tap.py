# SPDX-License-Identifier: Apache-2.0
"""Which requests are copied, what is copied of them, and that nothing is without room."""

from __future__ import annotations

import asyncio
import json
import types

import pytest

from pytriton.base.columns import ColumnKind
from pytriton.base.dtypes import BY_NAME
from pytriton.base.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
)
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.protocol.recording import (
    Exchange,
    RecordedTensor,
    RecordingEnd,
    RecordingHead,
    RecordReader,
)
from pytriton.runtime.executor.columns import (
    ChunkSignature,
    make_members,
    shared_request,
)
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.engine import Engine
from pytriton.serving.server.recording import tap as tap_module
from pytriton.serving.server.recording.pacing import (
    ASKING_BURST_NS,
    COPYING_BURST_NS,
    FIRST_WINDOW,
    ShadowPace,
    ShadowProgress,
)
from pytriton.serving.server.recording.recording import Recordings
from pytriton.serving.server.recording.tap import EngineTap, ExchangeChoice, ExchangeQueue
from pytriton.testing import FakeClock
from tests.chunks import PiecesChunk
from tests.fakes import infer_request, model_spec

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
    engine = Engine()
    queue = ExchangeQueue(ExchangeChoice(**choice), max_bytes)
    tap = EngineTap(engine.observers)
    tap.add(queue)
    return engine, tap, queue


def request(model="m", size=8, **changes):
    data = bytearray(each % 256 for each in range(size))
    return infer_request(model, {"x": InferTensor("x", FP32, (size // 4,), data)}, **changes)


def response(data=b"\0\0\x80\x3f"):
    return InferResponse("m", "1", "", [InferTensor("y", FP32, (1,), memoryview(data))])


def exchanges(queue):
    return [exchange for exchange, _ in queue.waiting]


def test_engine_without_consumers_has_no_tap():
    engine, tap, queue = tapped()

    assert engine.observers.are_there
    tap.remove(queue)
    tap.remove(queue)
    assert not engine.observers.are_there


def test_request_is_passed_on_with_its_answer():
    _, tap, queue = tapped()
    sent, sink = request(id="i", received_ns=5), KeepingSink()
    inference = Inference(sent, sink)
    tap._observers.begin(inference)
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
    tap._observers.begin(inference)
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


def test_calls_of_models_are_not_copied():
    _, tap, queue = tapped()
    inference = Inference(request(call_depth=1), KeepingSink())
    tap._observers.begin(inference)

    assert isinstance(inference.sink, KeepingSink)
    assert queue.used_bytes == 0


def test_response_that_cannot_be_delivered_is_an_error_for_its_caller_as_before():
    _, tap, queue = tapped()
    inference = Inference(request(), FailingSink())
    tap._observers.begin(inference)
    with pytest.raises(InternalError):
        inference.sink.on_response(response(), final=True)
    inference.sink.on_error(InternalError("the client is gone"))

    assert queue.taken_count == 1


def test_without_room_nothing_is_copied_and_the_drop_is_counted():
    _, tap, queue = tapped(max_bytes=4000)
    inferences = [Inference(request(size=800), KeepingSink()) for _ in range(3)]
    for inference in inferences:
        tap._observers.begin(inference)

    assert queue.dropped_count == 1
    assert isinstance(inferences[2].sink, KeepingSink)


def test_response_without_room_drops_the_exchange_and_frees_its_room():
    _, tap, queue = tapped(max_bytes=4000)
    sink = KeepingSink()
    inference = Inference(request(), sink)
    tap._observers.begin(inference)
    inference.sink.on_response(response(bytes(8000)), final=True)

    assert len(sink.events) == 1
    assert (queue.taken_count, queue.dropped_count, queue.used_bytes) == (0, 1, 0)


def test_room_is_free_again_when_the_consumer_is_done():
    _, tap, queue = tapped(max_bytes=4000)
    for _ in range(10):
        inference = Inference(request(size=800), KeepingSink())
        tap._observers.begin(inference)
        inference.sink.on_response(response(), final=True)
        queue.release(queue.waiting.popleft()[1])

    assert (queue.taken_count, queue.dropped_count, queue.used_bytes) == (10, 0, 0)


def test_share_is_taken_evenly_and_only_of_the_models():
    choice = ExchangeChoice(["a"], 0.25)
    assert [choice.takes("a", 0) for _ in range(8)] == [False, False, False, True] * 2
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


class ThreadClock(FakeClock):
    """Also the clock of a thread, for which nothing takes time."""

    def thread_time_ns(self):
        return 0


@pytest.fixture
def paced(monkeypatch):
    """A tap with a pace, on a clock that stands still."""
    monkeypatch.setattr(tap_module, "time", ThreadClock())
    engine, tap, queue = tapped()
    queue.pace = ShadowPace(2, tap_module.time.monotonic_ns())
    return engine, tap, queue


def closed(pace, reason):
    pace.closed_until_ns, pace.reason = 1 << 62, reason


def observed(tap, **changes):
    inference = Inference(request(**changes), KeepingSink())
    tap._observers.begin(inference)
    return inference


def is_copied(inference):
    return not isinstance(inference.sink, KeepingSink)


def test_request_that_the_pace_does_not_allow_is_dropped_with_its_reason(paced):
    _, tap, queue = paced
    closed(queue.pace, "slow")

    assert not is_copied(observed(tap))
    assert queue.drops == {"slow": 1}
    assert queue.used_bytes == 0


def test_copies_of_requests_together_are_spread_over_those_that_are_chosen(paced):
    _, _, queue = paced
    places = queue.wants_of("m", 100)

    assert 1 <= len(places) <= FIRST_WINDOW
    assert len(set(places)) == len(places)
    assert places[-1] >= 100 - 100 // len(places) - 1
    assert queue.dropped_count == 100 - len(places)


def test_members_without_allowance_are_counted_by_addition(paced):
    _, _, queue = paced
    closed(queue.pace, "gone")

    assert list(queue.wants_of("m", 1000)) == []
    assert queue.drops == {"gone": 1000}


def test_large_request_is_not_copied_where_a_small_one_is(paced):
    _, tap, queue = paced
    queue.max_bytes = 1 << 30
    queue.pace.spend(COPYING_BURST_NS // 2, 100)

    assert not is_copied(observed(tap, size=16 << 20))
    assert queue.drops == {"budget": 1}
    queue.pace.closed_until_ns = 0
    assert is_copied(observed(tap))


def test_large_request_is_copied_when_nothing_was_for_a_while(paced):
    _, tap, queue = paced
    queue.max_bytes = 1 << 30

    assert is_copied(observed(tap, size=16 << 20))


def test_long_stream_that_takes_too_much_time_is_given_up(paced):
    _, tap, queue = paced
    inference = observed(tap)
    inference.sink.on_response(response(), final=False)
    queue.pace.spend(10**9, 0)
    inference.sink.on_response(response(), final=False)
    inference.sink.on_response(None, final=True)

    assert queue.drops == {"budget": 1}
    assert (queue.taken_count, queue.used_bytes) == (0, 0)


def test_request_whose_answer_cannot_be_copied_frees_what_it_holds(paced, caplog):
    _, tap, queue = paced
    inference = observed(tap)
    sink = inference.sink._sink
    broken = InferResponse("m", "1", "", [InferTensor("y", FP32, (1,), 5)])
    inference.sink.on_response(broken, final=True)

    assert sink.events == [(broken, True)]
    assert queue.drops == {"error": 1}
    assert queue.used_bytes == 0
    assert "an answer could not be recorded" in caplog.text


def test_sequence_with_a_gap_is_not_passed_on_any_more(paced):
    _, tap, queue = paced
    sent = [observed(tap, correlation_id=7, flags=1)]
    closed(queue.pace, "slow")
    sent.append(observed(tap, correlation_id=7))
    queue.pace.closed_until_ns = 0
    sent.append(observed(tap, correlation_id=7, flags=2))
    sent.append(observed(tap, correlation_id=7, flags=1))
    sent.append(observed(tap, correlation_id=7))

    assert [is_copied(each) for each in sent] == [True, False, False, True, True]
    assert queue.drops == {"slow": 1, "sequence": 1}


def test_sequence_that_began_before_is_passed_on_from_its_next_beginning(paced):
    _, tap, _ = paced

    assert not is_copied(observed(tap, correlation_id="a"))
    assert is_copied(observed(tap, correlation_id="a", flags=1))


def test_request_that_was_dropped_later_is_not_under_way_any_more(paced):
    _, tap, queue = paced
    queue.max_bytes = 4000
    for _ in range(2 * FIRST_WINDOW):
        inference = observed(tap)
        inference.sink.on_response(response(bytes(8000)), final=True)

    assert queue.drops == {"room": 2 * FIRST_WINDOW}


def test_process_that_has_answered_gets_more_requests(paced):
    _, tap, queue = paced
    first = [observed(tap) for _ in range(FIRST_WINDOW + 1)]
    queue.pace.progress = ShadowProgress(ended=5, asking_ns=ASKING_BURST_NS // 1000)
    tap_module.time.sleep(1)

    assert [is_copied(each) for each in first] == [True] * FIRST_WINDOW + [False]
    assert queue.drops == {"slow": 1}
    assert is_copied(observed(tap))


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
    tap = EngineTap(engine.observers)
    recordings = Recordings(tap, "here", loop)
    status = loop.run_until_complete(recordings.do("start", json.dumps(wanted).encode()))
    return recordings, tap, status["id"]


def serve(tap, count=1, **changes):
    for _ in range(count):
        inference = Inference(request(**changes), KeepingSink())
        tap._observers.begin(inference)
        inference.sink.on_response(response(), final=True)


def test_recording_ends_after_its_requests(loop):
    recordings, tap, recording_id = started(loop, requests=2, redact=["y"])
    serve(tap, 3)
    head, *between, end = fetch_all(recordings, recording_id, loop)

    assert isinstance(head, RecordingHead)
    assert [each.number for each in between] == [0, 1]
    assert between[0].responses[0].outputs[0].is_redacted
    assert end == RecordingEnd(reason="the limit of requests was reached", exchanges=2)
    assert not tap._observers.are_there


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
    recordings = Recordings(EngineTap(Engine().observers), "here", loop)
    with pytest.raises(InvalidArgumentError):
        loop.run_until_complete(recordings.do("start", body))


def test_unknown_recording_is_not_found(loop):
    recordings, _, _ = started(loop)
    for action in ("fetch", "stop"):
        with pytest.raises(NotFoundError):
            loop.run_until_complete(recordings.do(action, b'{"id": "x"}'))


def test_recording_that_nobody_fetches_ends_and_frees_its_memory():
    async def run():
        tap = EngineTap(Engine().observers)
        recordings = Recordings(tap, "here", asyncio.get_running_loop())
        await recordings.do("start", b'{"seconds": 1e6}')
        serve(tap)
        await asyncio.sleep(100)
        return tap, recordings, await recordings.do("status", b"")

    tap, recordings, status = FakeClock().run(run())

    assert status == {}
    assert not tap._observers.are_there
    texts = "".join(family.text() for family in recordings.families())
    assert 'nv_recording_end_count{reason="gone"} 1' in texts
    assert "nv_recording_request_count 1" in texts


def test_recording_that_ended_has_metrics_and_a_server_without_one_has_none(loop):
    assert list(Recordings(EngineTap(Engine().observers), "here", loop).families()) == []
    recordings, tap, recording_id = started(loop, requests=1)
    serve(tap)
    fetch_all(recordings, recording_id, loop)
    texts = "".join(family.text() for family in recordings.families())

    assert "nv_recording_running 0" in texts
    assert 'nv_recording_end_count{reason="requests"} 1' in texts


def test_model_in_a_namespace_has_one_name_however_requests_come():
    engine, _, queue = tapped(models=["m"])
    spec = model_spec(namespace="team_a")
    engine.infer(request("team_a::m"), KeepingSink())
    signature = ChunkSignature((ColumnKind("x", FP32, (1,), 4),))
    sink = types.SimpleNamespace(on_outcome=lambda *_, **__: None)
    chunk = PiecesChunk.of(signature, sink, [[bytes(4)] * 2], range(3))
    make_members(chunk, None, shared_request(spec.identifier, signature, 1))
    engine.observers.begin_chunk(chunk, types.SimpleNamespace(spec=spec))
    for index in range(2):
        chunk.sink.on_outcome(chunk, index, None, InternalError("no"), is_refused=False)

    assert [exchange.model for exchange in exchanges(queue)] == ["team_a::m"] * 3
    assert queue.choice.means("team_a::m")
    assert not queue.choice.means("team_a::other")
