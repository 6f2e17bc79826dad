# SPDX-License-Identifier: Apache-2.0
"""Programs' own tests put fakes in place of the official client's methods; clients use those."""

from __future__ import annotations

import json
from unittest import mock

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    FuturesModelClient,
    ModelClient,
)
from pytriton.client.exceptions import (
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
)
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from tests.client.test_asyncio_client import in_a_loop
from tests.e2e.waiting import DEADLINE_S

X = np.array([1, 2], np.float32)
SENT = {
    "model_name": "Model",
    "model_version": "",
    "inputs": mock.ANY,
    "outputs": mock.ANY,
    "request_id": "0",
    "parameters": None,
    "headers": None,
}
CLASSES = {
    ("http", False): tritonclient.http.InferenceServerClient,
    ("grpc", False): tritonclient.grpc.InferenceServerClient,
    ("http", True): tritonclient.http.aio.InferenceServerClient,
    ("grpc", True): tritonclient.grpc.aio.InferenceServerClient,
}
TENSOR = {"data_type": "TYPE_FP32", "dims": [-1]}
CONFIG = {
    "name": "Model",
    "max_batch_size": 8,
    "backend": "python",
    "input": [{"name": "x", **TENSOR}],
    "output": [{"name": "y", **TENSOR}],
}


def result_with(y):
    """An answer over HTTP; some use it for clients over gRPC, too."""
    output = {"name": "y", "datatype": "FP32", "shape": list(y.shape), "data": y.ravel().tolist()}
    return tritonclient.http.InferResult.from_response_body(
        json.dumps({"outputs": [output]}).encode()
    )


@pytest.fixture
def pretend(monkeypatch, scheme):
    """Makes a server up that is not there."""

    def pretend(*, is_asyncio=False, is_model_ready=True):
        official = CLASSES[scheme, is_asyncio]
        config = CONFIG if scheme == "http" else {"config": CONFIG}
        kind = mock.AsyncMock if is_asyncio else mock.Mock
        for method, answer in (
            ("is_server_ready", True),
            ("is_server_live", True),
            ("is_model_ready", is_model_ready),
            ("get_model_config", config),
        ):
            monkeypatch.setattr(official, method, kind(return_value=answer))
        return f"{scheme}://localhost:1"

    return pretend


@pytest.fixture
def limit(scheme):
    """Over gRPC the limit goes with the call."""
    return {"client_timeout": 60.0} if scheme == "grpc" else {}


def test_client_sends_through_what_stands_in_for_infer(pretend, limit):
    with ModelClient(pretend(), "Model") as client:
        client._infer_client.infer = mock.Mock(return_value=result_with(X[None]))
        result = client.infer_sample(X)

        client._infer_client.infer.assert_called_once_with(**SENT, **limit)
    (sent,) = client._infer_client.infer.call_args.kwargs["inputs"]
    assert (sent.name(), list(sent.shape())) == ("x", [1, 2])
    np.testing.assert_array_equal(result["y"], X)


@in_a_loop
async def test_asyncio_client_sends_through_what_stands_in_for_infer(pretend, limit):
    async with AsyncioModelClient(pretend(is_asyncio=True), "Model") as client:
        client._infer_client.infer = mock.AsyncMock(return_value=result_with(X[None]))
        result = await client.infer_sample(x=X)

        client._infer_client.infer.assert_called_once_with(**SENT, **limit)
    np.testing.assert_array_equal(result["y"], X)


def test_model_that_never_becomes_ready_is_waited_for_until_the_limit(pretend):
    url = pretend(is_model_ready=False)
    with pytest.raises(
        PyTritonClientTimeoutError, match=r"Waiting for model (.*) to be ready timed out."
    ):
        ModelClient(url, "Model", lazy_init=False, init_timeout_s=0.05)


@in_a_loop
async def test_asyncio_model_that_never_becomes_ready_is_waited_for_until_the_limit(pretend):
    client = AsyncioModelClient(
        pretend(is_asyncio=True, is_model_ready=False),
        "Model",
        lazy_init=False,
        init_timeout_s=0.05,
    )
    with pytest.raises(PyTritonClientTimeoutError, match="Timeout while waiting for model"):
        await client.__aenter__()


def test_future_passes_on_what_it_was_given(pretend, monkeypatch):
    infer = mock.Mock(return_value={"y": X})
    wait = mock.Mock(return_value=True)
    monkeypatch.setattr(ModelClient, "infer_batch", infer)
    monkeypatch.setattr(ModelClient, "wait_for_model", wait)
    with FuturesModelClient(pretend(), "Model") as client:
        assert client.infer_batch(X).result(DEADLINE_S) == {"y": X}
        assert client.wait_for_model(15).result(DEADLINE_S) is True
        assert client.model_config().result(DEADLINE_S).model_name == "Model"

    infer.assert_called_once_with(X, parameters=None, headers=None)
    wait.assert_called_once_with(15)


STREAMING = TritonModelConfig(
    "Model",
    max_batch_size=8,
    decoupled=True,
    inputs=[TensorSpec("x", (-1,), np.float32)],
    outputs=[TensorSpec("y", (-1,), np.float32)],
)


@in_a_loop
async def test_asyncio_stream_comes_from_what_stands_in_for_stream_infer():
    async def stream(requests, headers):
        assert [request["model_name"] async for request in requests] == ["Model"]
        yield result_with(X[None]), None
        yield None, PyTritonClientInferenceServerError("enough")

    settings = {"model_config": STREAMING, "ensure_model_is_ready": False}
    async with AsyncioDecoupledModelClient("grpc://localhost:1", "Model", **settings) as client:
        client._infer_client.stream_infer = stream
        responses = client.infer_sample(X)

        np.testing.assert_array_equal((await anext(responses))["y"], X)
        with pytest.raises(PyTritonClientInferenceServerError, match="enough"):
            await anext(responses)
