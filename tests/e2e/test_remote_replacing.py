# SPDX-License-Identifier: Apache-2.0
"""Who binds a name that is there takes its place, and nobody's request is lost by that."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import RemoteTriton, Triton, TritonConfig
from tests.e2e.http_client import InferFailedError, infer, is_ready
from tests.e2e.waiting import DEADLINE_S, eventually

X, Y = (Tensor(name=name, dtype=np.float32, shape=(1,)) for name in "xy")
ONE = {"x": np.ones((1, 1), np.float32)}


def times(factor):
    return lambda requests: [{"y": request["x"] * factor} for request in requests]


class Gate:
    """A model that answers with a factor, but not before it is opened."""

    def __init__(self, factor):
        self.opened = threading.Event()
        self.count = 0
        self._infer = times(factor)

    def __call__(self, requests):
        self.count += len(requests)
        assert self.opened.wait(DEADLINE_S)
        return self._infer(requests)


def serve(triton, infer_func, name="Model"):
    triton.bind(name, infer_func, [X], [Y], config=ModelConfig(max_batch_size=1))


def ask(port, name="Model"):
    return infer(port, name, ONE)["y"].item()


@pytest.fixture
def server(ports):
    with Triton(config=TritonConfig(**ports)) as triton:
        yield triton


@pytest.fixture
def connect(server, ports):
    """Joins the server; ends what is left in the end."""
    made = []

    def connect():
        token = server.get_access_token()
        remote = RemoteTriton(f"localhost:{ports['http_port']}", access_token=token)
        remote.connect()
        made.append(remote)
        return remote

    yield connect
    for remote in made:
        remote.stop()


@pytest.fixture
def port(ports):
    return ports["http_port"]


def test_end_of_the_replaced_one_takes_nothing_away(connect, port):
    first, second = connect(), connect()
    serve(first, times(2))
    serve(second, times(5))
    assert first.is_alive()
    first.stop()

    assert ask(port) == 5
    second.stop()
    assert not is_ready(port, "Model")


def test_end_of_the_second_one_does_not_bring_the_first_back(connect, port):
    first, second = connect(), connect()
    serve(first, times(2))
    serve(second, times(5))
    second.stop()

    with pytest.raises(InferFailedError, match="unknown model"):
        ask(port)
    assert is_ready(port)
    first.unbind("Model")
    serve(first, times(3))
    assert ask(port) == 3


def test_model_of_the_server_itself_is_replaced_and_bound_again(server, connect, port):
    serve(server, times(2))
    remote = connect()
    serve(remote, times(5))
    assert ask(port) == 5
    server.unbind("Model")
    assert ask(port) == 5

    serve(server, times(3))

    assert ask(port) == 3
    remote.stop()
    assert ask(port) == 3
    assert server.is_alive()


def test_versions_of_two_processes_are_served_side_by_side(connect, port):
    first, second = connect(), connect()
    for remote, version in ((first, 1), (second, 2)):
        remote.bind("Model", times(version), [X], [Y], version)
    assert [ask(port, f"Model/versions/{version}") for version in (1, 2)] == [1, 2]
    assert ask(port) == 2

    second.stop()

    assert ask(port) == 1


def test_requests_that_come_all_the_time_are_all_answered(connect, port):
    serve(connect(), times(0))
    over = threading.Event()

    def load():
        answers = []
        while not over.is_set():
            answers.append(ask(port))
        return answers

    with ThreadPoolExecutor(2) as threads:
        loads = [threads.submit(load) for _ in range(2)]
        try:
            for number in range(1, 21):
                serve(connect(), times(number))
                assert eventually(lambda number=number: ask(port) == number)
        finally:
            over.set()
        for each in loads:
            answers = each.result()
            assert answers == sorted(answers)
            assert answers


def test_server_that_stops_waits_for_a_replaced_model(server, connect, port):
    gate = Gate(2)
    serve(connect(), gate)
    with ThreadPoolExecutor(2) as threads:
        answer = threads.submit(ask, port)
        assert eventually(lambda: gate.count == 1)
        serve(connect(), times(5))
        stopping = threads.submit(server.stop)
        assert eventually(lambda: not is_ready(port))
        gate.opened.set()

        assert answer.result() == 2
        assert stopping.result()
