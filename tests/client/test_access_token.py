# SPDX-License-Identifier: Apache-2.0
"""Every client sends its token with every request, readiness and configuration included."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from pytriton.client.auth import create_auth_headers
from pytriton.client.exceptions import (
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
)
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests.client.models import bind_all
from tests.e2e.waiting import DEADLINE_S
from tests.free_ports import free_ports

A = np.ones(2, np.float32)
N = np.array([2], np.int32)
TOKEN = {"access_token": "secret", "init_timeout_s": DEADLINE_S}
PROTECTED = ["health", "metadata", "inference", "model-config", "model-repository"]


@pytest.fixture(scope="module")
def urls():
    """A server that answers nothing without its token."""
    ports = dict(zip(("http_port", "grpc_port", "metrics_port"), free_ports(3), strict=True))
    security = TritonSecurityConfig(access_token="secret", restricted_endpoints=PROTECTED)
    with Triton(config=TritonConfig(**ports), security_config=security) as triton:
        bind_all(triton)
        yield {
            "http": f"http://localhost:{ports['http_port']}",
            "grpc": f"grpc://localhost:{ports['grpc_port']}",
        }


def test_client_with_the_token_passes(urls, scheme):
    with ModelClient(urls[scheme], "AddSub", **TOKEN) as client:
        client.wait_for_model(DEADLINE_S)
        client.wait_for_server(DEADLINE_S)

        assert client.infer_sample(A, A)["add"].tolist() == [2, 2]
        with ModelClient.from_existing_client(client) as twin:
            assert twin.infer_sample(A, A)["add"].tolist() == [2, 2]


def test_client_without_the_token_waits_in_vain(urls, scheme):
    with (
        ModelClient(urls[scheme], "AddSub", init_timeout_s=0.3) as client,
        pytest.raises(PyTritonClientTimeoutError),
    ):
        client.infer_sample(A, A)


def test_inference_without_the_token_is_refused(urls, scheme):
    with ModelClient(urls[scheme], "AddSub", **TOKEN) as client:
        config = client.model_config
    known = {"model_config": config, "ensure_model_is_ready": False}
    with (
        ModelClient(urls[scheme], "AddSub", **known) as client,
        pytest.raises(PyTritonClientInferenceServerError),
    ):
        client.infer_sample(A, A)


def test_header_of_a_request_wins_over_the_token(urls, scheme):
    wrong = create_auth_headers("wrong", scheme)
    with ModelClient(urls[scheme], "AddSub", **TOKEN) as client:
        client.infer_sample(A, A)

        with pytest.raises(PyTritonClientInferenceServerError):
            client.infer_sample(A, A, headers=wrong)


def test_management_is_allowed_with_the_token_only(urls, scheme):
    with (
        ModelClient(urls[scheme], "Nobody") as client,
        pytest.raises(PyTritonClientInferenceServerError, match="loading of the model"),
    ):
        client.load_model()


def test_futures_client_with_the_token_passes(urls, scheme):
    with FuturesModelClient(urls[scheme], "AddSub", **TOKEN) as client:
        assert client.infer_sample(A, A).result(DEADLINE_S)["add"].tolist() == [2, 2]


def test_asyncio_client_with_the_token_passes(urls, scheme):
    async def infer():
        async with AsyncioModelClient(urls[scheme], "AddSub", **TOKEN) as client:
            await client.wait_for_model(DEADLINE_S)
            return await client.infer_sample(A, A)

    assert asyncio.run(infer())["add"].tolist() == [2, 2]


def test_decoupled_client_with_the_token_passes(urls):
    with DecoupledModelClient(urls["grpc"], "PlainCounter", **TOKEN) as client:
        assert len(list(client.infer_sample(N))) == 2


def test_asyncio_decoupled_client_with_the_token_passes(urls):
    async def infer():
        async with AsyncioDecoupledModelClient(urls["grpc"], "PlainCounter", **TOKEN) as client:
            return [response async for response in client.infer_sample(N)]

    assert len(asyncio.run(infer())) == 2


@pytest.mark.parametrize("kind", [ModelClient, AsyncioModelClient])
def test_empty_token_is_refused(kind, scheme):
    with pytest.raises(ValueError, match="access_token cannot be None or empty"):
        kind(f"{scheme}://localhost", "Model", access_token="")
