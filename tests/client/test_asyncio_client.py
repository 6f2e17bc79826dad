# SPDX-License-Identifier: Apache-2.0
"""`AsyncioModelClient`: what differs from `ModelClient`, and that the rest does not."""

from __future__ import annotations

import asyncio
import functools

import numpy as np
import pytest

from pytriton.client import AsyncioModelClient, ModelClient
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.model_config.triton_model_config import TritonModelConfig
from tests.client.operands import A, B
from tests.client.scripted_server import ScriptedServer
from tests.e2e.waiting import DEADLINE_S


def in_a_loop(test):
    """Runs a coroutine as a test."""

    @functools.wraps(test)
    def run(**fixtures):
        asyncio.run(test(**fixtures))

    return run


@in_a_loop
async def test_config_is_fetched_once_for_many_tasks(url):
    async with AsyncioModelClient(url, "AddSub") as client:
        configs = await asyncio.gather(*(client.model_config for _ in range(10)))

    assert len({id(config) for config in configs}) == 1


@in_a_loop
async def test_entering_waits_where_it_is_asked_to(url):
    async with AsyncioModelClient(url, "AddSub", lazy_init=False) as client:
        assert client._model_config.model_name == "AddSub"


@pytest.mark.usefixtures("looks_once")
@in_a_loop
async def test_entering_in_vain_closes_the_client(url):
    client = AsyncioModelClient(url, "Nobody", lazy_init=False, init_timeout_s=DEADLINE_S)
    with pytest.raises(PyTritonClientTimeoutError, match="Timeout while waiting for model"):
        async with client:
            pytest.fail("the model is not there")

    with pytest.raises(PyTritonClientClosedError, match="AsyncioModelClient is closed"):
        await client.infer_sample(A)


@in_a_loop
async def test_wrong_arguments_are_refused_before_anything_is_sent():
    client = AsyncioModelClient("localhost:1", "Model")
    for positional, named in (((), {}), ((A,), {"b": B}), (([1.0],), {})):
        with pytest.raises(PyTritonClientValueError):
            await client.infer_sample(*positional, **named)
    await client.close()
    await client.close()


class Stubborn:
    """An official client that cannot be closed without a complaint."""

    closed = 0

    async def close(self):
        type(self).closed += 1
        raise OSError("stays open")


@in_a_loop
async def test_one_connection_that_cannot_be_closed_does_not_keep_the_other_open(monkeypatch):
    monkeypatch.setattr(Stubborn, "closed", 0)
    monkeypatch.setattr(AsyncioModelClient, "create_client_from_url", lambda *_: Stubborn())
    client = AsyncioModelClient("localhost:1", "Model")
    assert isinstance(client._general_client, Stubborn)
    assert isinstance(client._infer_client, Stubborn)

    with pytest.raises(OSError, match="stays open"):
        await client.close()

    assert Stubborn.closed == 2


@in_a_loop
async def test_inference_is_cancelled_with_its_task_and_the_client_goes_on(url, gate):
    async with AsyncioModelClient(url, "Gated") as client:
        inference = await gated_inference(client, gate)
        inference.cancel()
        with pytest.raises(asyncio.CancelledError):
            await inference

        gate.open()
        result = await client.infer_sample(gate.data)
        assert result["passed"] == gate.number


@pytest.mark.parametrize("kind", [AsyncioModelClient, ModelClient])
@in_a_loop
async def test_client_is_made_after_another(url, kind):
    first = kind(url, "AddSub", inference_timeout_s=33)
    twin = AsyncioModelClient.from_existing_client(first)
    try:
        np.testing.assert_array_equal((await twin.infer_sample(A, B))["add"], A + B)
        assert (twin._url, twin._inference_timeout_s) == (first._url, 33)
    finally:
        await twin.close()
        closing = first.close()
        if closing is not None:
            await closing


def test_client_can_be_made_outside_a_loop(url):
    client = AsyncioModelClient(url, "AddSub")

    async def infer():
        async with client:
            return await client.infer_sample(A, B)

    np.testing.assert_array_equal(asyncio.run(infer())["add"], A + B)


@in_a_loop
async def test_answer_that_is_none_of_triton_s_is_the_server_s_error():
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"
    settings = {"model_config": TritonModelConfig("M"), "ensure_model_is_ready": False}
    with ScriptedServer([answer]) as server:
        async with AsyncioModelClient(server.url, "M", **settings) as client:
            with pytest.raises(PyTritonClientInferenceServerError, match="cannot be read"):
                await client.infer_sample(x=A)


@in_a_loop
async def test_wait_during_which_another_task_closes_is_refused(our_server, scheme):
    client = AsyncioModelClient(our_server.urls[scheme], "Nobody")
    asked, ask = asyncio.Event(), client._general_client.is_model_ready

    def is_model_ready(*model, **headers):
        asked.set()
        return ask(*model, **headers)

    client._general_client.is_model_ready = is_model_ready
    waiting = asyncio.create_task(client.wait_for_model(DEADLINE_S))
    await asyncio.wait_for(asked.wait(), DEADLINE_S)
    await client.close()

    with pytest.raises(PyTritonClientClosedError):
        await waiting


async def gated_inference(client, gate):
    """One that is in progress."""
    await client.model_config
    inference = asyncio.create_task(client.infer_sample(gate.data))
    await asyncio.to_thread(gate.await_guest)
    return inference


@in_a_loop
async def test_inference_whose_connection_another_task_closes_is_refused(our_server, gate):
    client = AsyncioModelClient(our_server.urls["grpc"], "Gated")
    inference = await gated_inference(client, gate)
    await client.close()

    with pytest.raises(PyTritonClientClosedError, match="AsyncioModelClient is closed"):
        await inference


@in_a_loop
async def test_inference_that_is_cancelled_is_cancelled(our_server, scheme, gate):
    async with AsyncioModelClient(our_server.urls[scheme], "Gated") as client:
        inference = await gated_inference(client, gate)
        inference.cancel()

        with pytest.raises(asyncio.CancelledError):
            await inference


@pytest.mark.parametrize("turns", range(6))
@in_a_loop
async def test_inference_is_cancelled_at_every_step(url, turns, gate):
    async with AsyncioModelClient(url, "Gated") as client:
        inference = asyncio.create_task(client.infer_sample(gate.data))
        for _ in range(turns):
            await asyncio.sleep(0)
        inference.cancel()

        with pytest.raises(asyncio.CancelledError):
            await inference
