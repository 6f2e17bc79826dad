# SPDX-License-Identifier: Apache-2.0
"""The clients of decoupled models: streams end, fail, are given up, and the client goes on."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytriton.client import AsyncioDecoupledModelClient, DecoupledModelClient, decoupled_client
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.testing import FakeClock
from tests.client.test_asyncio_client import in_a_loop
from tests.e2e.waiting import DEADLINE_S, eventually, is_waiting


def n(value):
    return np.array([value], np.int32)


def values_of(responses):
    return [int(response["value"].ravel()[0]) for response in responses]


class Runner:
    """One face for both kinds of client."""

    def __init__(self, kind, url, model, **settings):
        self._arguments = (url, model)
        self._settings = settings
        self._kind = kind

    def responses(self, method, *inputs, **named):
        """Everything that one inference answers, and the shape of the values."""
        if self._kind is DecoupledModelClient:
            with DecoupledModelClient(*self._arguments, **self._settings) as client:
                return list(getattr(client, method)(*inputs, **named))
        return asyncio.run(self._collect(method, inputs, named))

    async def _collect(self, method, inputs, named):
        async with AsyncioDecoupledModelClient(*self._arguments, **self._settings) as client:
            return [response async for response in getattr(client, method)(*inputs, **named)]


@pytest.fixture
def responses(decoupled_client_class, grpc_url):
    def responses(model, method, *inputs, **named):
        runner = Runner(decoupled_client_class, grpc_url, model, init_timeout_s=DEADLINE_S)
        return runner.responses(method, *inputs, **named)

    return responses


def test_http_is_refused(decoupled_client_class):
    runner = Runner(decoupled_client_class, "http://localhost", "Counter")
    with pytest.raises(PyTritonClientValueError, match="supports only grpc"):
        runner.responses("infer_sample", n(1))


@pytest.fixture
def client(grpc_url):
    with DecoupledModelClient(grpc_url, "Counter", init_timeout_s=DEADLINE_S) as client:
        yield client


def test_client_goes_on_after_a_stream(client):
    assert values_of(client.infer_sample(n(2))) == [0, 1]
    assert values_of(client.infer_sample(n(3))) == [0, 1, 2]


def test_client_goes_on_after_failures(client):
    for _ in range(3):
        with pytest.raises(PyTritonClientInferenceServerError, match="this stream fails"):
            list(client.infer_sample(n(-1)))
        with pytest.raises(PyTritonClientValueError):
            client.infer_sample()

    assert values_of(client.infer_sample(n(2))) == [0, 1]


def test_client_goes_on_after_a_stream_was_closed(client):
    stream = client.infer_sample(n(1000))
    next(stream)
    stream.close()

    assert list(stream) == []
    assert values_of(client.infer_sample(n(2))) == [0, 1]


def test_client_goes_on_after_a_stream_was_dropped(client):
    stream = client.infer_sample(n(1000))
    next(stream)
    del stream
    gc.collect()

    assert values_of(client.infer_sample(n(2))) == [0, 1]


def test_stream_that_nobody_began_to_read_is_in_progress_also_when_it_was_dropped(client):
    client.infer_sample(n(2))

    with pytest.raises(PyTritonClientInferenceServerError, match="already in progress"):
        client.infer_sample(n(2))


def test_stream_that_nobody_began_to_read_in_time_makes_room(grpc_url, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(decoupled_client, "time", clock)
    with DecoupledModelClient(grpc_url, "Counter", inference_timeout_s=DEADLINE_S) as client:
        unread = client.infer_sample(n(2))
        clock.advance(DEADLINE_S)
        with pytest.raises(PyTritonClientInferenceServerError, match="already in progress"):
            client.infer_sample(n(2))
        clock.advance(0.001)

        assert values_of(client.infer_sample(n(2))) == [0, 1]
        with pytest.raises(PyTritonClientTimeoutError, match="to be read within 180 s"):
            next(unread)

    assert list(unread) == []


def test_client_goes_on_after_a_stream_that_nobody_began_to_read_was_closed(client):
    client.infer_sample(n(2)).close()

    assert values_of(client.infer_sample(n(2))) == [0, 1]


def test_stream_closed_by_another_thread_ends_and_makes_room(grpc_url, gate):
    with DecoupledModelClient(grpc_url, "Counter", inference_timeout_s=DEADLINE_S) as client:
        stream = client.infer_sample(gate.pause)
        next(stream)
        with ThreadPoolExecutor() as threads:
            rest = threads.submit(list, stream)
            assert eventually(lambda: is_waiting(*threads._threads))
            stream.close()

        assert rest.result() == []
        gate.open()
        assert values_of(client.infer_sample(n(2))) == [0, 1]


def test_stream_keeps_its_client_alive(grpc_url):
    stream = DecoupledModelClient(grpc_url, "Counter").infer_sample(n(3))
    gc.collect()

    assert values_of(stream) == [0, 1, 2]


@pytest.mark.parametrize("name", ["parameters", "headers"])
def test_parameters_and_headers_are_refused(client, name):
    with pytest.raises(PyTritonClientValueError, match=f"does not support {name}"):
        client.infer_sample(n(1), **{name: {"a": 1}})

    assert values_of(client.infer_sample(n(1))) == [0]


@pytest.mark.parametrize("value", [1000, -1, -5], ids=["running", "fails at once", "fails later"])
def test_closing_during_a_stream_is_a_warning_only(grpc_url, caplog, value):
    client = DecoupledModelClient(grpc_url, "Counter")
    stream = client.infer_sample(n(value))
    next(stream)
    client.close()
    client.close()

    assert [record.levelname for record in caplog.records if "pytriton" in record.name] == [
        "WARNING"
    ]
    with pytest.raises(PyTritonClientClosedError):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)


def test_closing_wakes_a_thread_that_waits_for_a_response(grpc_url, gate):
    client = DecoupledModelClient(grpc_url, "Counter", inference_timeout_s=DEADLINE_S)
    stream = client.infer_sample(gate.pause)
    next(stream)
    with ThreadPoolExecutor() as threads:
        read = threads.submit(next, stream)
        assert eventually(lambda: is_waiting(*threads._threads))
        client.close()

        with pytest.raises(PyTritonClientClosedError):
            read.result(DEADLINE_S)


def test_client_is_made_after_another(client):
    client.model_config  # noqa: B018  fetches it
    with DecoupledModelClient.from_existing_client(client) as twin:
        assert twin.model_config is client.model_config
        assert values_of(twin.infer_sample(n(2))) == [0, 1]


def test_program_that_leaves_a_stream_open_ends(our_server, gate):
    source = f"""
import numpy as np
from pytriton.client import DecoupledModelClient
client = DecoupledModelClient({our_server.urls["grpc"]!r}, "Counter")
stream = client.infer_sample(np.array({gate.pause.tolist()}, np.int32))
print(next(stream)["value"])
"""
    process = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )

    assert (process.stdout.strip(), process.stderr) == ("[0]", "")


@in_a_loop
async def test_asyncio_client_goes_on_after_a_stream_was_given_up(grpc_url):
    async with AsyncioDecoupledModelClient(grpc_url, "Counter") as client:
        stream = client.infer_sample(n(1000))
        await anext(stream)
        await stream.aclose()

        assert [int(r["value"][0]) async for r in client.infer_sample(n(2))] == [0, 1]


@in_a_loop
async def test_asyncio_stream_is_refused_when_it_begins(grpc_url):
    async with AsyncioDecoupledModelClient(grpc_url, "AddSub") as client:
        stream = client.infer_sample(np.ones(1, np.float32))  # says nothing yet

        with pytest.raises(PyTritonClientInferenceServerError, match="not decoupled"):
            await anext(stream)


@in_a_loop
async def test_closed_asyncio_client_is_refused():
    client = AsyncioDecoupledModelClient("grpc://localhost", "Counter")
    await client.close()

    with pytest.raises(PyTritonClientClosedError):
        await anext(client.infer_sample(n(1)))


@in_a_loop
async def test_asyncio_stream_whose_client_another_task_closes_is_refused(grpc_url, gate):
    client = AsyncioDecoupledModelClient(grpc_url, "Counter")
    stream = client.infer_sample(gate.pause)
    await anext(stream)
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)  # it waits for what the model answers after the gate
    await client.close()

    with pytest.raises(PyTritonClientClosedError):
        await reading
