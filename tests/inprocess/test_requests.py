# SPDX-License-Identifier: Apache-2.0
"""Requests to models of a server in this process, for threads and for event loops."""

from __future__ import annotations

import asyncio
import gc
import json
import queue
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import pytriton.inprocess
import tritonserver
from pytriton.inprocess import ResponseIterator
from pytriton.inprocess.responses import InprocessExchange
from pytriton.runtime.executor.inference import Inference
from tests.e2e.waiting import DEADLINE_S
from tritonserver import DataType, ModelBatchFlag, ModelTxnPropertyFlag


def numbers(responses) -> list[int]:
    return [int(np.from_dlpack(each.outputs["NUMBER"])[0]) for each in responses if each.outputs]


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_request_is_answered(server):
    array = np.arange(4, dtype=np.float32)
    (response,) = server.model("identity").infer(inputs={"INPUT0": array}, request_id="a")

    assert (response.model.name, response.model.version) == ("identity", 1)
    assert (response.request_id, response.final, response.error) == ("a", True, None)
    assert response.outputs["OUTPUT0"].data_type is DataType.FP32
    assert np.from_dlpack(response.outputs["OUTPUT0"]).tolist() == [0, 1, 2, 3]


def test_request_may_be_sent_several_times(server):
    model = server.model("strings", 1)
    request = model.create_request(model="x", inputs={"INPUT0": ["a", "grün"]})

    for _ in range(3):
        (response,) = model.infer(request)
        assert response.outputs["OUTPUT0"].to_string_array().tolist() == ["a", "grün"]


def test_output_is_an_input_again(server):
    model = server.model("halves")
    torch = pytest.importorskip("torch")
    (first,) = model.infer(inputs={"INPUT0": torch.arange(3, dtype=torch.bfloat16)})
    (second,) = model.infer(inputs={"INPUT0": first.outputs["OUTPUT0"]})

    assert torch.from_dlpack(second.outputs["OUTPUT0"]).tolist() == [0, 1, 2]


def test_large_output_stays_valid_without_a_copy(server):
    model = server.model("identity")
    array = np.arange(4 << 20, dtype=np.float32)
    (response,) = model.infer(inputs={"INPUT0": array})
    view = np.from_dlpack(response.outputs["OUTPUT0"])
    address = response.outputs["OUTPUT0"].data_ptr
    del response
    for _ in range(3):  # they do not get this memory
        list(model.infer(inputs={"INPUT0": np.zeros(4 << 20, np.float32)}))

    assert view.ctypes.data == address
    assert np.array_equal(view, array)


def test_request_tells_the_model_what_it_has(server):
    (response,) = server.model("telling").infer(
        inputs={"IN": ["x"]},
        request_id="me",
        parameters={"a": 1, "b": "two", "c": True, "d": 0.5},
        correlation_id=7,
        flags=1,
        timeout=1_000_000,
    )

    told = json.loads(response.outputs["OUT"].to_bytes_array()[0])
    assert told["id"] == "me"
    assert told["parameters"] == {"a": 1, "b": "two", "c": True, "d": 0.5}
    assert (told["correlation"], told["flags"], told["timeout"]) == (7, 1, 1_000_000)
    assert response.parameters == {"answered": True}


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"inputs": {"X": [1.0]}}, "unexpected inference input 'X'"),
        ({"inputs": {}}, "expected 1 inputs but got 0"),
        ({"inputs": {"INPUT0": np.arange(3)}}, "data-type is 'INT64'"),
        ({"inputs": {"INPUT0": np.float32(1)}}, "shape"),
        ({"inputs": {"INPUT0": None}}, "not supported for 'INPUT0'"),
        ({"inputs": {1: None}}, "name of an input"),
        ({"parameters": {"a": None}}, "parameter 'a'"),
        ({"parameters": {"a": {}}}, "parameter 'a'"),
        ({"request_id": 3}, "request_id must be str, got 3"),
        ({"correlation_id": 1.5}, "correlation_id must be int or str"),
        ({"priority": -1}, "priority must be from 0"),
    ],
)
def test_bad_request_is_refused_at_once(server, fields, text):
    request = {"inputs": {"INPUT0": np.zeros(1, np.float32)}, **fields}

    with pytest.raises(tritonserver.InvalidArgumentError, match=text):
        server.model("identity").infer(**request)


def test_unknown_model_and_version_are_refused_at_once(server):
    inputs = {"INPUT0": np.zeros(1, np.float32)}

    with pytest.raises(tritonserver.NotFoundError, match="unknown model: 'nothing'"):
        server.model("nothing").infer(inputs=inputs)
    assert len(list(server.model("identity", 1).infer(inputs={"INPUT0": [np.float32(1)]}))) == 1
    with pytest.raises(tritonserver.NotFoundError, match="version 9"):
        server.model("identity", 9).infer(inputs=inputs)


def test_error_of_a_model_is_raised_with_its_response(server):
    inputs = {"INPUT0": np.zeros(1, np.float32)}
    responses = server.model("failing").infer(inputs=inputs, request_id="b")

    with pytest.raises(tritonserver.UnavailableError, match="out of order") as caught:
        next(responses)
    assert caught.value.args[1].request_id == "b"
    assert caught.value.args[1].final
    with pytest.raises(StopIteration):
        next(responses)


def test_error_of_a_model_may_be_a_response(server):
    inputs = {"INPUT0": np.zeros(1, np.float32)}
    (response,) = server.model("failing").infer(inputs=inputs, raise_on_error=False)

    assert isinstance(response.error, tritonserver.UnavailableError)
    assert response.outputs == {}


def test_other_memory_of_outputs_is_refused_when_they_are_fetched(server):
    inputs = {"INPUT0": np.zeros(1, np.float32)}
    model = server.model("identity")

    assert len(list(model.infer(inputs=inputs, output_memory_type="cpu"))) == 1
    with pytest.raises(tritonserver.InvalidArgumentError, match="Memory type 'x' not supported"):
        next(model.infer(inputs=inputs, output_memory_type="x"))


def test_iterator_is_over_after_outputs_that_cannot_be_had(server):
    inputs = {"INPUT0": np.zeros(1, np.float32)}
    model = server.model("identity")
    fetched = queue.SimpleQueue()

    for members in ({}, {"response_queue": fetched}):
        responses = model.infer(inputs=inputs, output_memory_type="gpu", **members)
        with pytest.raises(tritonserver.UnsupportedError):
            next(responses)
        assert list(responses) == []
    assert isinstance(fetched.get(timeout=DEADLINE_S).error, tritonserver.UnsupportedError)


def test_decoupled_model_sends_many_responses_and_an_empty_one(server):
    responses = list(server.model("counting").infer(inputs={"COUNT": np.array([5], np.int32)}))

    assert numbers(responses) == [0, 1, 2, 3, 4]
    assert [each.final for each in responses] == [False] * 5 + [True]
    assert responses[-1].outputs == {}


def test_decoupled_model_goes_on_after_an_error(server):
    responses = server.model("counting").infer(
        inputs={"COUNT": np.array([3], np.int32)}, parameters={"fails": True}
    )

    assert not next(responses).final
    with pytest.raises(tritonserver.TritonError, match="no one"):
        next(responses)
    assert [each.final for each in responses] == [False, True]


def test_decoupled_model_waits_for_its_caller(server, repository):
    sent = repository / "counting" / "1" / "sent"
    sent.write_text("0")
    responses = server.model("counting").infer(inputs={"COUNT": np.array([400], np.int32)})
    next(responses)
    counts = []
    until(lambda: counts.append(sent.read_text()) or counts[-30:].count(counts[-1]) == 30)

    assert int(counts[-1]) < 200
    assert numbers(responses) == list(range(1, 400))


def test_request_goes_on_without_its_caller(server, repository):
    sent = repository / "counting" / "1" / "sent"
    responses = server.model("counting").infer(inputs={"COUNT": np.array([100], np.int32)})
    next(responses)
    del responses

    until(lambda: sent.read_text() == "100")


def test_request_is_cancelled(server):
    responses = server.model("counting").infer(inputs={"COUNT": np.array([10**6], np.int32)})
    next(responses)
    responses.cancel()

    assert len(numbers(responses)) < 1000
    responses.cancel()  # it is over, so this does nothing


def test_waiting_request_is_cancelled(server):
    model = server.model("patient")
    first = model.infer(inputs={"WAIT": np.array([1], np.int32)})
    second = model.infer(inputs={"WAIT": np.array([0], np.int32)})
    second.cancel()

    with pytest.raises(pytriton.inprocess.CancelledError):
        next(second)
    first.cancel()
    assert len(list(first)) == 1  # the model has noticed


def test_queue_gets_all_responses_as_well(server):
    fetched = queue.SimpleQueue()
    responses = server.model("counting").infer(
        inputs={"COUNT": np.array([40], np.int32)}, response_queue=fetched
    )

    assert numbers(responses) == list(range(40))
    assert numbers(fetched.get(timeout=DEADLINE_S) for _ in range(41)) == list(range(40))


def test_two_threads_cannot_wait_for_the_same_response(server):
    responses = server.model("patient").infer(
        inputs={"WAIT": np.array([1], np.int32)}, raise_on_error=False
    )
    waiting = threading.Thread(target=lambda: list(responses), daemon=True)
    waiting.start()
    until(responses._turn.locked)

    with pytest.raises(tritonserver.InvalidArgumentError, match="concurrently"):
        next(responses)
    responses.cancel()
    waiting.join(DEADLINE_S)


def test_many_threads_are_answered(server):
    model = server.model("identity")

    def ask(number: int) -> list[int]:
        array = np.full(3, number, np.float32)
        return [
            int(np.from_dlpack(response.outputs["OUTPUT0"])[0])
            for _ in range(40)
            for response in model.infer(inputs={"INPUT0": array})
        ]

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))

    assert answers == [[number] * 40 for number in range(6)]


def test_caller_who_waits_alone_runs_the_loop_and_gives_it_back(server):
    model = server.model("identity")
    inputs = {"INPUT0": np.zeros(1, np.float32)}
    shared_loop = server.engine.shared_loop

    def ask_until_it_is_my_turn() -> ResponseIterator:
        before = shared_loop._turn_count
        end = time.monotonic() + 60
        while shared_loop._turn_count < before + 10:
            list(model.infer(inputs=inputs))
            assert time.monotonic() < end, vars(shared_loop)
        return model.infer(inputs=inputs)

    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(ask_until_it_is_my_turn).result()
    until(later._exchange.arrivals.qsize)  # nobody waits for it, and it comes

    assert len(list(later)) == 1
    until(lambda: not shared_loop._is_parked)
    assert shared_loop.open_count == 0


def test_coroutines_of_several_loops_are_answered(server):
    model = server.model("counting")

    async def ask() -> list[int]:
        found = []
        async for each in model.async_infer(inputs={"COUNT": np.array([30], np.int32)}):
            found += numbers([each])
        return found

    async def ask_often() -> list[list[int]]:
        return await asyncio.gather(*(ask() for _ in range(5)))

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: asyncio.run(ask_often()), range(2)))

    assert answers == [[list(range(30))] * 5] * 2


def test_coroutine_gets_errors_and_queues(server):
    async def ask():
        fetched = asyncio.Queue(1)
        responses = server.model("counting").async_infer(
            inputs={"COUNT": np.array([20], np.int32)}, response_queue=fetched
        )
        queued = [await fetched.get() for _ in range(21)]
        iterated = [each async for each in responses]
        failing = server.model("failing").async_infer(inputs={"INPUT0": np.zeros(1, np.float32)})
        with pytest.raises(tritonserver.UnavailableError):
            await anext(failing)
        assert [each async for each in failing] == []
        return queued, iterated

    queued, iterated = asyncio.run(ask())

    assert numbers(queued) == numbers(iterated) == list(range(20))


def test_iterator_that_nobody_refers_to_is_freed_without_a_collection(server, repository):
    sent = repository / "counting" / "1" / "sent"

    async def ask():
        responses = server.model("counting").async_infer(inputs={"COUNT": np.array([90], np.int32)})
        await anext(responses)
        return weakref.ref(responses)

    gc.disable()
    try:
        freed = asyncio.run(ask())
        until(lambda: freed() is None)  # the engine's thread may just wake it
        until(lambda: sent.read_text() == "90")  # the model does not wait for anybody
    finally:
        gc.enable()


def test_queue_of_a_coroutine_needs_its_loop(server):
    with pytest.raises(RuntimeError, match="no running event loop"):
        server.model("counting").async_infer(
            inputs={"COUNT": np.array([1], np.int32)}, response_queue=asyncio.Queue()
        )


def test_coroutine_may_stop_to_wait_and_cancel(server):
    async def ask():
        responses = server.model("patient").async_infer(inputs={"WAIT": np.array([1], np.int32)})
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(responses), 0.05)
        responses.cancel()
        assert (await anext(responses)).final

    asyncio.run(ask())


def test_coroutine_may_also_wait_as_a_thread(server):
    async def ask():
        return len(list(server.model("identity").infer(inputs={"INPUT0": [np.float32(1)]})))

    for _ in range(5):
        assert asyncio.run(ask()) == 1


def test_cache_answers(server):
    model = server.model("cached")
    for _ in range(3):
        (response,) = model.infer(inputs={"INPUT0": np.array([5], np.float32)})
        assert np.from_dlpack(response.outputs["OUTPUT0"]).tolist() == [5]

    statistics = model.statistics()["model_stats"][0]
    assert statistics["inference_stats"]["cache_hit"]["count"] == 2
    assert statistics["execution_count"] == 1


def test_model_describes_itself(server):
    model = server.model("counting")

    assert model.metadata()["outputs"][0] == {"name": "NUMBER", "datatype": "INT32", "shape": [1]}
    assert model.config()["model_transaction_policy"]["decoupled"]
    assert model.transaction_properties() is ModelTxnPropertyFlag.DECOUPLED
    assert server.model("identity").transaction_properties() is ModelTxnPropertyFlag.ONE_TO_ONE
    assert model.batch_properties() is ModelBatchFlag.UNKNOWN
    assert model.ready()
    assert not server.model("nothing").ready()
    assert repr(model) == "{'name': 'counting', 'version': -1, 'state': None}"
    with pytest.raises(tritonserver.NotFoundError):
        server.model("nothing").metadata()
    with pytest.raises(tritonserver.InvalidArgumentError, match="version 2"):
        model.config(2)


def test_memory_of_requests_is_freed(server):
    model = server.model("identity")
    responses = model.infer(inputs={"INPUT0": np.zeros(1, np.float32)})
    list(responses)
    exchange = responses._exchange

    assert exchange.inference is None
    # The engine's thread may not be back from where it has passed the response on.
    until(lambda: not [each for each in gc.get_referrers(exchange) if type(each) is Inference])


def test_caller_may_forget_to_be_woken_while_the_last_response_arrives():
    calls = []
    wakes = iter([lambda: calls.append("woken")])

    class ForgottenExchange(InprocessExchange):
        on_arrival = property(lambda _: next(wakes, None), lambda *_: None)

    exchange = ForgottenExchange(SimpleNamespace(end_request=lambda: None), None, None, None)
    exchange.on_response(None, final=True)

    assert calls == ["woken"]


def test_request_is_over_before_its_caller_has_the_last_response():
    engine = SimpleNamespace(shared_loop=None, end_request=lambda: seen.append("end"))
    exchange = InprocessExchange(engine, None, None, None)
    exchange.inference = object()
    exchange.arrivals = SimpleNamespace(put=lambda _: seen.append(exchange.inference))
    seen = []
    exchange.on_response(None, final=True)

    assert seen == ["end", None]


@pytest.fixture
def interrupts():
    """Python's own handler, also where a shell has started the tests with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_dropped_request_is_discarded_whole_although_an_interrupt_comes(monkeypatch, interrupts):
    steps = []

    class InterruptedExchange:
        def discard(self):
            signal.raise_signal(signal.SIGINT)
            steps.append("discarded")

    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: steps.append(dropped.exc_type))
    iterator = ResponseIterator(InterruptedExchange(), raises=True, response_queue=None)
    del iterator

    assert steps == ["discarded", KeyboardInterrupt]
