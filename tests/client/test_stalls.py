# SPDX-License-Identifier: Apache-2.0
"""A time limit holds wherever a server stalls, and a failed client does not wait in its end."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from pytriton.client.exceptions import PyTritonClientTimeoutError
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from tests.e2e.waiting import DEADLINE_S

LIMIT_S = 0.2
FAR_TOO_LATE_S = 50.0  # a limit that is not kept is late by a default of a minute or for ever

CONFIG = TritonModelConfig(
    "Model",
    inputs=[TensorSpec("x", (-1,), np.float32)],
    outputs=[TensorSpec("y", (-1,), np.float32)],
)
DECOUPLED_CONFIG = TritonModelConfig(
    "Model", decoupled=True, inputs=CONFIG.inputs, outputs=CONFIG.outputs
)
# More than the buffers of two sockets take, so that sending stalls too.
LARGE = np.zeros(4_000_000, np.float32)


def known(config=CONFIG):
    return {
        "inference_timeout_s": LIMIT_S,
        "model_config": config,
        "ensure_model_is_ready": False,
    }


class Stopwatch:
    def __enter__(self):
        self._begin = time.monotonic()
        return self

    def __exit__(self, *_):
        self.elapsed_s = time.monotonic() - self._begin


def assert_limit_was_kept(stopwatch):
    assert LIMIT_S * 0.9 <= stopwatch.elapsed_s < FAR_TOO_LATE_S


def test_inference_ends_in_time(stalled, scheme):
    with (
        ModelClient(stalled.url(scheme), "Model", **known()) as client,
        Stopwatch() as stopwatch,
        pytest.raises(PyTritonClientTimeoutError) as raised,
    ):
        client.infer_sample(LARGE)

    assert_limit_was_kept(stopwatch)
    assert isinstance(raised.value, TimeoutError)
    assert str(LIMIT_S) in str(raised.value)


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's advice
def test_asyncio_inference_ends_in_time(stalled, scheme):
    async def infer():
        async with AsyncioModelClient(stalled.url(scheme), "Model", **known()) as client:
            with Stopwatch() as stopwatch, pytest.raises(PyTritonClientTimeoutError):
                await client.infer_sample(LARGE)
        return stopwatch

    assert_limit_was_kept(asyncio.run(infer()))


def test_stream_ends_in_time(stalled):
    with (
        DecoupledModelClient(stalled.url("grpc"), "Model", **known(DECOUPLED_CONFIG)) as client,
        Stopwatch() as stopwatch,
        pytest.raises(PyTritonClientTimeoutError),
    ):
        next(client.infer_sample(LARGE))

    assert_limit_was_kept(stopwatch)


def test_asyncio_stream_ends_in_time(stalled):
    async def infer():
        url = stalled.url("grpc")
        async with AsyncioDecoupledModelClient(url, "Model", **known(DECOUPLED_CONFIG)) as client:
            with Stopwatch() as stopwatch, pytest.raises(PyTritonClientTimeoutError):
                async for _ in client.infer_sample(LARGE):
                    pass
        return stopwatch

    assert_limit_was_kept(asyncio.run(infer()))


def test_future_ends_in_time(stalled, scheme):
    limits = {"init_timeout_s": LIMIT_S, "inference_timeout_s": LIMIT_S}
    with (
        FuturesModelClient(stalled.url(scheme), "Model", **limits) as client,
        Stopwatch() as stopwatch,
        pytest.raises(PyTritonClientTimeoutError),
    ):
        client.infer_sample(LARGE).result()

    assert_limit_was_kept(stopwatch)


def test_wait_for_model_ends_in_time(stalled, scheme):
    with (
        ModelClient(stalled.url(scheme), "Model") as client,
        Stopwatch() as stopwatch,
        pytest.raises(PyTritonClientTimeoutError, match=r"Waiting for (.*) to be ready timed out."),
    ):
        client.wait_for_model(LIMIT_S)

    assert_limit_was_kept(stopwatch)


def test_asyncio_wait_for_model_ends_in_time(stalled, scheme):
    async def wait():
        async with AsyncioModelClient(stalled.url(scheme), "Model") as client:
            with (
                Stopwatch() as stopwatch,
                pytest.raises(PyTritonClientTimeoutError, match="Timeout while waiting for model"),
            ):
                await client.wait_for_model(LIMIT_S)
        return stopwatch

    assert_limit_was_kept(asyncio.run(wait()))


def test_first_inference_keeps_the_limit_of_initialisation(stalled, scheme):
    with (
        ModelClient(stalled.url(scheme), "Model", init_timeout_s=LIMIT_S) as client,
        Stopwatch() as stopwatch,
        pytest.raises(PyTritonClientTimeoutError),
    ):
        client.infer_sample(LARGE)

    assert_limit_was_kept(stopwatch)


def test_constructor_that_initialises_keeps_its_limit(stalled, scheme):
    settings = {"lazy_init": False, "init_timeout_s": LIMIT_S}

    with Stopwatch() as stopwatch, pytest.raises(PyTritonClientTimeoutError):
        ModelClient(stalled.url(scheme), "Model", **settings)

    assert_limit_was_kept(stopwatch)


def test_slow_model_runs_into_the_limit(url, gate):
    with (
        ModelClient(url, "Gated", inference_timeout_s=LIMIT_S) as client,
        Stopwatch() as stopwatch,
        pytest.raises(PyTritonClientTimeoutError),
    ):
        client.infer_sample(gate.data)

    assert_limit_was_kept(stopwatch)


def test_stream_that_dries_up_runs_into_the_limit(grpc_url, gate):
    with DecoupledModelClient(grpc_url, "Counter", inference_timeout_s=DEADLINE_S) as client:
        stream = client.infer_sample(gate.pause)
        assert next(stream)["value"] == 0
        stream._stream._timeout_s = LIMIT_S  # the first response may take long

        with Stopwatch() as stopwatch, pytest.raises(PyTritonClientTimeoutError):
            next(stream)

    assert_limit_was_kept(stopwatch)
