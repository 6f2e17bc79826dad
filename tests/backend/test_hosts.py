# SPDX-License-Identifier: Apache-2.0
"""Threads of bound instances: what they cannot send harms no other request and ends none."""

from __future__ import annotations

import asyncio
import functools
import threading

import numpy as np
import pytest
from pydantic import BaseModel, Field

from pytriton.base.dtypes import BY_NAME
from pytriton.base.errors import ErrorCode, InputValueError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.runtime.functions import bound_model
from pytriton.runtime.functions.bound_model import BoundModel
from pytriton.runtime.signatures.served import served_model
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import BatchFailure, Execute, ResponsesFrame
from pytriton.runtime.transport.link import Link
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.payload import add_array
from pytriton.runtime.transport.response_outbox import ResponseOutbox
from tests.e2e.waiting import DEADLINE_S, eventually

LONG = "x" * 300_000
LARGE = [{"x": np.zeros(20_000, np.float32)}]


def kinds(answer):
    """Callables of all kinds that answer alike, and whether they are decoupled."""

    async def awaited(requests):
        return answer(requests)

    def stream(requests):
        yield answer(requests)

    async def awaited_stream(requests):
        yield answer(requests)

    return {
        "plain": (answer, False),
        "coroutine": (awaited, False),
        "generator": (stream, True),
        "async generator": (awaited_stream, True),
    }


def raises(requests):
    raise ValueError(LONG)


def refuses(requests):
    raise InputValueError("input `x`: expected 1 or 2, got 3")


LARGE_KINDS = kinds(lambda requests: LARGE)
RAISING = kinds(raises)
REFUSING = kinds(refuses)


@pytest.fixture
def open_model():
    """Starts a model; the server's end of its channel."""
    opened = []

    def start(function, *, is_decoupled=False, made=None):
        tensor = Tensor(name="x", dtype=np.float32, shape=(1,))
        config = ModelConfig(batching=False, decoupled=is_decoupled)
        model = BoundModel("m", [function], [tensor], [tensor], config=config)
        if made is not None:
            model = BoundModel("m", [function], made.inputs, made.outputs, config=made.config)
        (sock,), _ = model.open_instances(lambda: None)
        sock.settimeout(DEADLINE_S)
        channel = MemoryChannel(sock, Arena())
        opened.append((model, channel))
        return channel

    yield start
    for model, channel in opened:
        channel.close()
        model.close(DEADLINE_S)


def only_answer(frame):
    if isinstance(frame, ResponsesFrame):
        (answer,) = frame.items
        return answer
    assert isinstance(frame, BatchFailure)
    return frame


@pytest.mark.parametrize("function, is_decoupled", LARGE_KINDS.values(), ids=LARGE_KINDS)
def test_answer_without_room_is_an_error_and_the_instance_lives(
    function, is_decoupled, open_model, monkeypatch
):
    monkeypatch.setattr(bound_model, "Arena", functools.partial(Arena, limit_bytes=0))
    channel = open_model(function, is_decoupled=is_decoupled)
    for batch in (1, 2):
        channel.send(Execute(batch, [1], []))
        answer = only_answer(channel.receive().frame)
        assert answer.batch == batch
        assert answer.error.startswith("no room for a tensor of 80000 bytes")
        assert answer.error_code == ErrorCode.UNAVAILABLE


@pytest.mark.parametrize("function, is_decoupled", RAISING.values(), ids=RAISING)
def test_long_error_needs_no_shared_memory(function, is_decoupled, open_model, monkeypatch):
    monkeypatch.setattr(bound_model, "Arena", functools.partial(Arena, limit_bytes=0))
    channel = open_model(function, is_decoupled=is_decoupled)
    channel.send(Execute(1, [1], []))
    answer = only_answer(channel.receive().frame)

    assert answer.error.endswith(f"ValueError: {LONG}")
    assert answer.error_code == ErrorCode.INTERNAL


@pytest.mark.parametrize("function, is_decoupled", REFUSING.values(), ids=REFUSING)
def test_wrong_value_is_the_mistake_of_the_client(function, is_decoupled, open_model, caplog):
    channel = open_model(function, is_decoupled=is_decoupled)

    channel.send(Execute(1, [1], []))

    answer = only_answer(channel.receive().frame)
    assert answer.error == "input `x`: expected 1 or 2, got 3"
    assert answer.error_code == ErrorCode.INVALID_ARG
    assert caplog.text == ""


def test_wrong_value_in_a_batch_of_several_clients_is_no_mistake_of_the_others(open_model):
    channel = open_model(refuses)

    channel.send(Execute(1, [1, 1], []))

    answer = only_answer(channel.receive().frame)
    assert answer.error.endswith("InputValueError: input `x`: expected 1 or 2, got 3")
    assert answer.error_code == ErrorCode.INTERNAL


class Positive(BaseModel):
    x: float = Field(ge=0)


def root(body: Positive) -> float:
    return body.x**0.5


async def root_async(body: Positive) -> float:
    return body.x**0.5


def root_or_zero(body: Positive, y: float = 0) -> float:
    return body.x**0.5


NEGATIVE = "input `x`: Input should be greater than or equal to 0"


@pytest.mark.parametrize("function", [root, root_async, root_or_zero])
@pytest.mark.parametrize(
    "values, rows, expected",
    [
        ([4, -3, 9], [1, 1, 1], [[2], NEGATIVE, [3]]),
        ([4, 9, -3], [1, 2], [[2], f"row 1: {NEGATIVE}"]),
        ([-4, -9], [1, 1], [NEGATIVE] * 2),
    ],
)
def test_wrong_value_fails_its_own_request_of_a_batch(function, values, rows, expected, open_model):
    made = served_model(function, config=ModelConfig(max_batch_size=8))
    channel = open_model(made.infer_funcs[0], made=made)
    payload = channel.payload()
    tensors = {"x": np.array(values, np.float64).reshape(-1, 1)}
    ref = add_array(payload, tensors, "x", BY_NAME["FP64"])
    channel.send(Execute(1, rows, [ref]), payload)
    received = channel.receive()

    items = sorted(received.frame.items, key=lambda item: item.position)
    found = [item.error or received.array(item.outputs[0]).ravel().tolist() for item in items]
    assert found == expected
    codes = {item.error_code for item in items if item.error}
    assert codes == {ErrorCode.INVALID_ARG}


def test_coroutine_that_ends_with_its_channel_is_no_failure(open_model, caplog):
    began = threading.Event()

    async def wait(requests):
        began.set()
        await asyncio.Event().wait()

    channel = open_model(wait)
    channel.send(Execute(1, [1], []))
    assert began.wait(DEADLINE_S)
    channel.close()

    assert eventually(lambda: not instance_threads())
    assert caplog.text == ""


def test_exception_of_a_coroutine_that_ends_with_its_channel_is_logged(open_model, caplog):
    began = threading.Event()

    async def wait(requests):
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("did not close")

    channel = open_model(wait)
    channel.send(Execute(1, [1], []))
    assert began.wait(DEADLINE_S)
    channel.close()

    assert eventually(lambda: "when it was closed" in caplog.text)
    assert "did not close" in caplog.text


def test_generator_is_not_blamed_for_the_end_of_the_server(open_model, caplog, monkeypatch):
    """An answer that is sent when it is added meets the closed socket."""
    closed = []
    began, go_on = threading.Event(), threading.Event()

    def stream(requests):
        began.set()
        assert go_on.wait(DEADLINE_S)
        try:
            yield [{"x": np.zeros((1,), np.float32)}]
        finally:
            closed.append(True)

    def add_small(self, *_):
        raise BrokenPipeError

    channel = open_model(stream, is_decoupled=True)
    channel.send(Execute(1, [1], []))
    assert began.wait(DEADLINE_S)
    monkeypatch.setattr(ResponseOutbox, "add_small", add_small)
    go_on.set()

    assert eventually(lambda: not instance_threads())
    assert closed
    assert caplog.text == ""


def test_broken_pipe_of_a_generator_is_its_failure(open_model):
    def stream(requests):
        raise BrokenPipeError("of its own")
        yield

    channel = open_model(stream, is_decoupled=True)
    channel.send(Execute(1, [1], []))

    assert "BrokenPipeError: of its own" in only_answer(channel.receive().frame).error


def instance_threads():
    return [each for each in threading.enumerate() if each.name == "pytriton-m_0_0"]


def test_waiting_thread_leaves_the_timeout_of_its_socket_alone(open_model, monkeypatch):
    """Others may be sending on it: a large message would be torn."""
    kept = []

    def keep(requests):
        kept.extend(requests)
        return [{"x": np.ones((1,), np.float32)}]

    timeouts = set()
    receive = Link.receive

    def spy(self, flags=0):
        timeouts.add(self.socket.gettimeout())
        return receive(self, flags)

    channel = open_model(keep)
    monkeypatch.setattr(Link, "receive", spy)
    for batch in (1, 2):
        payload = channel.payload()
        block = payload.add([bytes(100_000)], 100_000)
        assert block[0]
        channel.send(Execute(batch, [1], []), payload)
        channel.receive()

    assert timeouts <= {None, DEADLINE_S}
