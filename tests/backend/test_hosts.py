# SPDX-License-Identifier: Apache-2.0
"""Threads of bound instances: what they cannot send harms no other request and ends none."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from pytriton.backend import bound_model
from pytriton.backend.bound_model import BoundModel
from pytriton.model_config import ModelConfig, Tensor
from pytriton.transport.arena import Arena
from pytriton.transport.frames import BatchFailure, Execute, Responses
from pytriton.transport.link import Link
from pytriton.transport.memory_channel import MemoryChannel

DEADLINE_S = 30.0
LONG = "x" * 300_000


def raises(requests):
    raise ValueError(LONG)


async def raises_async(requests):
    raise ValueError(LONG)


def yields(requests):
    raise ValueError(LONG)
    yield


async def yields_async(requests):
    raise ValueError(LONG)
    yield


KINDS = {
    "plain": (raises, False),
    "coroutine": (raises_async, False),
    "generator": (yields, True),
    "async generator": (yields_async, True),
}


@pytest.fixture
def open_model():
    """Starts a model; the server's end of its channel."""
    opened = []

    def start(function, *, is_decoupled=False):
        tensor = Tensor(name="x", dtype=np.float32, shape=(1,))
        config = ModelConfig(batching=False, decoupled=is_decoupled)
        model = BoundModel("m", [function], [tensor], [tensor], config=config)
        (sock,), _ = model.open_instances(lambda: None)
        sock.settimeout(DEADLINE_S)
        channel = MemoryChannel(sock, Arena())
        opened.append((model, channel))
        return channel

    yield start
    for model, channel in opened:
        channel.close()
        model.close(DEADLINE_S)


@pytest.mark.parametrize("kind", list(KINDS))
def test_answer_without_room_is_an_error_and_the_instance_lives(kind, open_model, monkeypatch):
    monkeypatch.setattr(bound_model, "Arena", functools.partial(Arena, limit_bytes=0))
    function, is_decoupled = KINDS[kind]
    channel = open_model(function, is_decoupled=is_decoupled)
    for batch in (1, 2):
        channel.send(Execute(batch, [1], []))
        frame = channel.receive().frame
        if isinstance(frame, Responses):
            (answer,) = frame.items
        else:
            answer = frame
            assert isinstance(frame, BatchFailure)
        assert answer.batch == batch
        assert "no room" in answer.error


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
