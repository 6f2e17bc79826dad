# SPDX-License-Identifier: Apache-2.0
"""Streams and large tensors through an engine's client, in its process and over a front end."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
import pytest

from pytriton.base.errors import InternalError
from pytriton.base.messages import InferResponse
from pytriton.model_config import Tensor
from pytriton.runtime.executor.inference import Outcome
from pytriton.runtime.transport.credit import RESPONSE_WINDOW, RESPONSE_WINDOW_BYTES
from tests.bursts import texts_burst
from tests.contract.benches import to_arrays, to_tensor
from tests.fakes import RecordingSink

LARGE = 1 << 20
FLOATS_IN = [Tensor(name="in", dtype=np.float32, shape=(-1,))]
FLOATS_OUT = [Tensor(name="out", dtype=np.float32, shape=(-1,))]


def answer(text):
    tensor = to_tensor("x", np.array([[len(text), 0]], np.int32))
    return InferResponse("m", "1", "", [tensor], {"text": text})


def texts(call):
    return [each.parameters["text"] for each in call.sink.responses if each is not None]


def floats(count):
    return {"in": to_tensor("in", np.arange(count, dtype=np.float32))}


def test_stream_gets_all_responses_in_order_and_its_end(seam):
    _, instance = seam.faked(decoupled=True)
    call = seam.infer(id="mine")
    seam.run()
    (batch,) = instance.running
    for text in ("a", "bc", "def"):
        instance.report(batch, [Outcome(0, answer(text), is_final=False)])
    seam.run()
    assert not call.is_over
    instance.report(batch, [Outcome(0, None)])
    seam.run()

    assert texts(call) == ["a", "bc", "def"]
    assert call.sink.responses[-1] is None
    assert call.sink.final_count == 1


def test_stream_continues_after_an_error(seam):
    _, instance = seam.faked(decoupled=True)
    call = seam.infer()
    seam.run()
    (batch,) = instance.running
    instance.report(batch, [Outcome(0, None, InternalError("this one"), is_final=False)])
    instance.report(batch, [Outcome(0, answer("a"), is_final=False)])
    instance.report(batch, [Outcome(0, None, InternalError("the last"))])
    seam.run()

    assert [error.message for error in call.sink.errors] == ["this one", "the last"]
    assert texts(call) == ["a"]
    assert call.sink.final_count == 1


def test_cancelled_stream_tells_its_instance_and_ends_with_its_answer(seam):
    _, instance = seam.faked(decoupled=True)
    call = seam.infer()
    seam.run()
    (batch,) = instance.running
    instance.report(batch, [Outcome(0, answer("a"), is_final=False)])
    seam.run()
    call.inference.cancel()
    seam.run()

    assert instance.cancelled == batch.inferences
    instance.report(batch, [Outcome(0, None)])
    seam.run()
    assert call.sink.final_count == 1


def test_stream_whose_sink_fails_is_cancelled_and_hears_no_more(seam):
    class Failing(RecordingSink):
        def on_response(self, response, *, final):
            raise ValueError

    _, instance = seam.faked(decoupled=True)
    call = seam.infer(sink=Failing())
    seam.run()
    (batch,) = instance.running
    for text in ("a", "b"):
        instance.report(batch, [Outcome(0, answer(text), is_final=False)])
        seam.run()

    assert len(call.sink.errors) == call.sink.final_count == 1
    assert instance.cancelled == batch.inferences
    instance.finish()
    seam.run()
    assert call.sink.final_count == 1


class BurstSink(RecordingSink):
    """Takes bursts as they are."""

    def on_burst(self, burst):
        for each in burst.responses():
            self.on_response(each, final=False)


@pytest.mark.parametrize("sink", [RecordingSink, BurstSink])
def test_responses_that_come_together_arrive_in_order(seam, sink):
    model, instance = seam.faked(decoupled=True)
    call = seam.infer(sink=sink(), id="mine")
    seam.run()
    (batch,) = instance.running
    instance.report(batch, [Outcome(0, answer("one"), is_final=False)])
    model.on_burst(instance, batch, 0, texts_burst("ab", request_id="mine"), (0, 0))
    model.on_burst(instance, batch, 0, texts_burst(["", "long"], request_id="mine"), (0, 0))
    seam.run()
    assert not call.is_over
    instance.report(batch, [Outcome(0, None)])
    seam.run()

    *responses, last = call.sink.responses
    assert last is None
    assert call.sink.final_count == 1
    assert [each.id for each in responses[1:]] == ["mine"] * 4
    got = [to_arrays(each)["text"].tolist() for each in responses[1:]]
    assert got == [[b"a"], [b"b"], [b""], [b"long"]]


def test_stream_whose_sink_fails_with_many_responses_is_cancelled(seam):
    class Failing(RecordingSink):
        def on_burst(self, burst):
            raise ValueError

    model, instance = seam.faked(decoupled=True)
    call = seam.infer(sink=Failing())
    seam.run()
    (batch,) = instance.running
    for _ in range(2):
        model.on_burst(instance, batch, 0, texts_burst("ab"), (0, 0))
        seam.run()

    assert len(call.sink.errors) == call.sink.final_count == 1
    assert instance.cancelled == batch.inferences
    instance.finish()
    seam.run()
    assert call.sink.final_count == 1


# Flow control


def counting_model(seam, produced, stop, size=1):
    def count(requests):
        for number in itertools.count():
            if stop.is_set():
                return
            produced.append(number)
            yield [{"out": np.full(size, number, np.float32)} for _ in requests]

    seam.bind(count, FLOATS_IN, FLOATS_OUT, batching=False, decoupled=True)


@pytest.mark.parametrize("size", [1, LARGE // 4], ids=["small", "large"])
def test_reader_that_pauses_bounds_what_the_model_sends(seam, size):
    produced, stop = [], threading.Event()
    counting_model(seam, produced, stop, size)
    call = seam.infer(inputs=floats(1))
    call.inference.pause()
    bound = 3 * RESPONSE_WINDOW if size == 1 else 3 * (RESPONSE_WINDOW_BYTES // (4 * size) + 1)
    quiet = itertools.count()
    last = [-1]

    def is_quiet():
        if len(produced) != last[0]:
            last[0] = len(produced)
            nonlocal quiet
            quiet = itertools.count()
        return next(quiet) > 200

    seam.until(is_quiet)
    assert 1 <= len(produced) <= bound

    call.inference.resume()
    seam.until(lambda: len(produced) > 2 * bound)
    stop.set()
    call.inference.resume()
    seam.until(lambda: call.is_over)
    received = [to_arrays(each)["out"][0] for each in call.sink.responses if each is not None]
    assert received == list(range(len(received)))


def test_paused_stream_can_be_cancelled(seam):
    produced, stop = [], threading.Event()
    counting_model(seam, produced, stop)
    call = seam.infer(inputs=floats(1))
    call.inference.pause()
    seam.until(lambda: produced)
    call.inference.cancel()
    seam.until(lambda: call.is_over)

    assert call.sink.final_count == 1


def test_many_streams_at_once_do_not_mix(seam):
    def repeat(requests):
        (request,) = requests
        for number in range(int(request["in"][0])):
            yield [{"out": np.array([request["in"][0], number], np.float32)}]

    seam.bind(repeat, FLOATS_IN, FLOATS_OUT, batching=False, decoupled=True)
    counts = [0, 1, 5, 64, 65, 300]
    calls = [
        seam.infer(inputs={"in": to_tensor("in", np.array([count], np.float32))})
        for count in counts
    ]
    seam.until(lambda: all(call.is_over for call in calls))

    for count, call in zip(counts, calls, strict=True):
        answers = [to_arrays(each)["out"].tolist() for each in call.sink.responses if each]
        assert answers == [[count, number] for number in range(count)]


# Large tensors


def echo(requests):
    return [{"out": request["in"]} for request in requests]


def plus_one(requests):
    return [{"out": request["in"] + 1} for request in requests]


def nothing(requests):
    return [{"out": np.zeros(1, np.float32)} for _ in requests]


def large_request(seam):
    """A tensor in memory that the client lends, as front ends receive large bodies."""
    data = np.arange(LARGE // 4, dtype=np.float32)
    memory = seam.client.lookup("m").body_memory(LARGE, 0)
    if memory is None:
        return {"in": to_tensor("in", data)}
    memory[:] = data.tobytes()
    tensor = to_tensor("in", data)
    tensor.data = memory
    return {"in": tensor}


@pytest.mark.parametrize("function, factor", [(echo, 0), (plus_one, 1)])
def test_large_tensors_pass_without_a_copy_and_their_memory_is_given_back(seam, function, factor):
    seam.bind(function, FLOATS_IN, FLOATS_OUT, batching=False)
    gc.disable()
    try:
        for _ in range(3):
            call = seam.infer(inputs=large_request(seam))
            seam.until(lambda call=call: call.is_over)
            expected = np.arange(LARGE // 4, dtype=np.float32) + factor
            assert (to_arrays(call.response)["out"] == expected).all()
            del call
        if seam.is_remote:
            assert seam.shared.memory.arena.reserved_bytes == 0, "the core has copied"
            assert seam.memory.arena.reserved_bytes == 0, "the core has copied to the instance"
            front_end = seam.front_ends[0]
            seam.until_nothing_is_left()
            assert front_end.link.memory.arena.reserved_bytes == 16 << 20
            assert "idle=1" in repr(front_end.link.memory.arena), "a block is kept"
    finally:
        gc.enable()


def test_large_input_is_given_back_when_its_request_is_cancelled_or_refused(seam):
    _model, (instance,) = seam.doubling(max_batch_size=LARGE)
    values = list(range(LARGE // 4))
    running = seam.infer(values)
    seam.run()
    waiting, wrong = seam.infer(values), seam.infer(values, outputs=("none",))
    waiting.inference.cancel()
    seam.run()
    assert waiting.error == ""
    assert wrong.is_over
    instance.double()
    seam.run()
    assert running.values["x"] == [2 * value for value in values]
    del running, waiting, wrong
    seam.exchange_updates()
    if seam.is_remote:
        assert "idle=" in repr(seam.front_ends[0].link.memory.arena)
        assert seam.front_ends[0].left_overs() == {}


def test_large_response_of_a_stream_is_read_after_others(seam):
    def stream(requests):
        for number in range(20):
            yield [{"out": np.full(LARGE // 4, number, np.float32)} for _ in requests]

    seam.bind(stream, FLOATS_IN, FLOATS_OUT, batching=False, decoupled=True)
    call = seam.infer(inputs=floats(1))
    kept = []

    def read():
        kept.extend(
            float(to_arrays(each)["out"].max()) for each in call.sink.responses if each is not None
        )
        call.sink.responses.clear()
        return call.is_over

    seam.until(read)

    assert kept == list(range(20))


def test_large_tensors_of_one_batch_are_joined_by_the_instance(seam):
    sizes = []

    def count(requests):
        sizes.append(len(requests))
        return plus_one(requests)

    seam.bind(count, FLOATS_IN, FLOATS_OUT)
    inputs = [large_rows(seam, number) for number in range(4)]

    calls = [seam.infer(inputs=each) for each in inputs]
    seam.until(lambda: all(call.is_over for call in calls))

    for number, call in enumerate(calls):
        expected = np.full((1, LARGE // 4), number + 1, np.float32)
        assert (to_arrays(call.response)["out"] == expected).all()
    assert max(sizes) > 1
    if seam.is_remote:
        assert seam.memory.arena.reserved_bytes == 0, "the core has copied to the instance"


def large_rows(seam, number: int):
    """The input of a request with one large row, in the memory of the front end if it has one."""
    data = np.full((1, LARGE // 4), number, np.float32)
    memory = seam.client.lookup("m").body_memory(data.nbytes, 0)
    tensor = to_tensor("in", data)
    if memory is not None:
        memory[:] = data.tobytes()
        tensor.data = memory
    return {"in": tensor}
