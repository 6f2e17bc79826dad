# SPDX-License-Identifier: Apache-2.0
"""Large BYTES inputs: their elements are counted beside the event loop."""

from __future__ import annotations

import asyncio
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base import dtypes
from pytriton.base.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
)
from pytriton.base.messages import InferRequest, InferTensor
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine import string_count
from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model
from pytriton.serving.engine.observers import ORDER, Observer
from pytriton.serving.engine.validation import MANY_STRINGS
from tests.e2e.loop_waiting import comes_true

CONFIG = """name: "m" backend: "python"
    input [ { name: "s" data_type: TYPE_STRING dims: [ -1 ] } ]
    output [ { name: "o" data_type: TYPE_STRING dims: [ -1 ] } ]"""
MANY = MANY_STRINGS + 10


class Sink:
    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.heard = asyncio.Event()

    def on_error(self, error, *, final=True):
        self.errors.append(error)
        self.heard.set()

    on_refused = on_error


def make_engine(loop):
    engine = Engine()
    config = config_from_text(CONFIG, "config.pbtxt")
    model = Model(spec_from_config(normalise_config(config), 1), loop)
    engine.add(model)
    engine.set_ready(model)
    taken = []
    model.submit = lambda inference, now_ns, **_: taken.append(inference)
    return engine, taken


def request_of(elements, count=None):
    data = dtypes.encode_bytes(elements)
    tensor = InferTensor("s", dtypes.BYTES, (len(elements) if count is None else count,), data)
    return InferRequest("m", {"s": tensor})


def varied(count):
    return [b"x" * (index % 3) for index in range(count)]


class Gate:
    """Holds the counting thread."""

    def __init__(self, monkeypatch) -> None:
        self.threads: list[threading.Thread] = []
        self.opened = threading.Event()
        count = string_count.count_strings

        def held(request):
            self.threads.append(threading.current_thread())
            assert self.opened.wait(60)
            count(request)

        monkeypatch.setattr(string_count, "count_strings", held)


@pytest.fixture
def gate(monkeypatch):
    return Gate(monkeypatch)


def test_few_strings_are_counted_at_once(gate):
    async def main():
        engine, taken = make_engine(asyncio.get_running_loop())
        engine.infer(request_of(varied(1000)), Sink())

        assert len(taken) == 1

    asyncio.run(main())
    assert gate.threads == []


def test_many_strings_are_counted_in_a_thread(gate):
    async def main():
        engine, taken = make_engine(asyncio.get_running_loop())
        inference = engine.infer(request_of(varied(MANY)), Sink())
        assert taken == []
        inference.pause()
        gate.opened.set()
        assert await comes_true(lambda: taken)

        assert taken == [inference]
        assert inference.is_paused

    asyncio.run(main())
    assert gate.threads[0] is not threading.main_thread()


def test_wrong_number_of_many_strings_is_refused(gate):
    async def main():
        engine, taken = make_engine(asyncio.get_running_loop())
        sink = Sink()
        engine.infer(request_of(varied(MANY), MANY + 5), sink)
        gate.opened.set()
        await asyncio.wait_for(sink.heard.wait(), 60)

        assert taken == []
        return sink.errors

    (error,) = asyncio.run(main())
    assert isinstance(error, InvalidArgumentError)
    assert f"expected {MANY + 5} string elements" in error.message


def test_request_may_be_given_up_while_its_strings_are_counted(gate):
    async def main():
        engine, taken = make_engine(asyncio.get_running_loop())
        sink = Sink()
        inference = engine.infer(request_of(varied(MANY)), sink)
        inference.cancel()
        inference.cancel()
        gate.opened.set()
        assert await comes_true(lambda: engine.infer(request_of(varied(MANY)), Sink()) and taken)

        assert inference not in taken
        return sink.errors

    (error,) = asyncio.run(main())
    assert isinstance(error, CancelledError)


@pytest.mark.parametrize(
    "failure, kind, is_logged",
    [(MemoryError(), UnavailableError, False), (KeyError("x"), InternalError, True)],
)
def test_request_whose_strings_cannot_be_counted_is_refused_once(
    monkeypatch, caplog, failure, kind, is_logged
):
    def fail(request):
        raise failure

    monkeypatch.setattr(string_count, "count_strings", fail)

    async def main():
        engine, taken = make_engine(asyncio.get_running_loop())
        sink = Sink()
        engine.infer(request_of(varied(MANY)), sink)
        await asyncio.wait_for(sink.heard.wait(), 60)

        assert taken == []
        return sink.errors

    (error,) = asyncio.run(main())
    assert isinstance(error, kind)
    assert ("unexpected error in the server while it counted strings" in caplog.text) == is_logged


def test_requests_of_a_sequence_stay_in_order_while_strings_are_counted(gate):
    async def main():
        engine, taken = make_engine(asyncio.get_running_loop())
        sent = []
        for count, correlation_id in ((MANY, 7), (1, 7), (MANY, 7), (2, 7), (1, 8), (1, 0), (3, 7)):
            request = request_of(varied(count))
            request.fields.correlation_id = correlation_id
            sent.append(engine.infer(request, Sink()))
        assert taken == sent[4:6]  # they are of no sequence or of another one
        sent[3].cancel()
        gate.opened.set()
        assert await comes_true(lambda: len(taken) == 6)

        assert taken[2:] == [sent[0], sent[1], sent[2], sent[6]]

    asyncio.run(main())


def test_who_waits_for_the_place_of_a_request_hears_of_it(gate):
    async def main():
        engine, _ = make_engine(asyncio.get_running_loop())
        inference = engine.infer(request_of(varied(MANY)), Sink())
        owners = []
        inference.owner.call_when_dispatched(inference, lambda: owners.append(inference.owner))
        gate.opened.set()
        assert await comes_true(lambda: owners)

        assert owners == [engine.lookup("m")]

    asyncio.run(main())


@given(
    st.lists(st.binary(max_size=3), max_size=400),
    st.integers(-2, 2),
    st.integers(0, 5),
    st.booleans(),
)
def test_walk_is_that_of_one_element_after_the_other(elements, more, cut, is_equal):
    if is_equal:
        elements = [b"ab"] * (len(elements) * 4)
    data = dtypes.encode_bytes(elements)
    data = data[: len(data) - cut]
    count = max(0, len(elements) + more)

    position = start = found = 0
    while found < count and position <= len(data) - 4:
        start = position + 4
        position = start + struct.unpack_from("<I", data, position)[0]
        found += 1

    walk = dtypes.walk_bytes(data, count)
    assert (walk.found, walk.end) == (found, position)
    assert not found or walk.start == start


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_elements_of_one_length_are_walked_in_any_buffer(wrap):
    data = wrap(bytes(4 * 1000))

    assert dtypes.walk_bytes(data, 1000) == (1000, 4000, 4000)


@pytest.mark.parametrize("is_alone", [False, True])
def test_request_whose_strings_are_counted_is_observed_once(gate, is_alone):
    async def main():
        engine, taken = make_engine(asyncio.get_running_loop())
        observed = []

        class Seer(Observer):
            def begun(self, members):
                observed.extend(members.requests)

        engine.observers.add(ORDER[0], Seer())
        inferences = [Inference(request_of(varied(size)), Sink()) for size in (MANY, 10)]
        engine.submit(inferences[0], is_alone=is_alone)
        engine.submit(inferences[1])
        gate.opened.set()
        assert await comes_true(lambda: len(taken) == 2)

        assert observed == [each.request for each in inferences]

    asyncio.run(main())
