# SPDX-License-Identifier: Apache-2.0
"""The official HTTP clients and curl: every datatype, both data forms, headers and parameters."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess

import numpy as np
import pytest
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from pytriton.decorators import batch
from pytriton.model_config import Tensor
from tests.e2e.waiting import DEADLINE_S

pytestmark = pytest.mark.both_front_end_modes

NUMBERS = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64",
]  # fmt: skip
BOTH_FORMS = [
    (dtype, binary_in, binary_out)
    for dtype in NUMBERS
    for binary_in in (True, False)
    for binary_out in (True, False)
    if dtype != "float16" or (binary_in and binary_out)  # which has no form in JSON
]


@pytest.fixture
def client(host):
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{host.port}") as client:
        yield client


def infer_input(name, array, *, binary):
    tensor = tritonclient.http.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    return tensor.set_data_from_numpy(array, binary_data=binary)


def output(name, *, binary):
    return tritonclient.http.InferRequestedOutput(name, binary_data=binary)


def echo_model(host, dtype):
    return host.bind(
        batch(lambda x: {"y": x}),
        [Tensor(name="x", dtype=dtype, shape=(-1,))],
        [Tensor(name="y", dtype=dtype, shape=(-1,))],
    )


def sample(dtype):
    if dtype == "bool":
        return np.array([[True, False, True]])
    limits = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    return np.array([[limits.min, 0, 1, limits.max]], dtype)


@pytest.mark.parametrize("dtype, binary_in, binary_out", BOTH_FORMS)
def test_extreme_numbers_pass_in_every_form(host, client, dtype, binary_in, binary_out):
    sent = sample(dtype)
    model = echo_model(host, np.dtype(dtype).type)

    result = client.infer(
        model, [infer_input("x", sent, binary=binary_in)], outputs=[output("y", binary=binary_out)]
    )

    received = result.as_numpy("y")
    assert received.dtype == sent.dtype
    assert np.array_equal(received, sent)


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "json in"])
@pytest.mark.parametrize("binary_out", [True, False], ids=["binary out", "json out"])
def test_text_passes_in_every_form(host, client, binary_in, binary_out):
    sent = np.array([["", "word", "héllo ☃ \U0001f600", 'quote " and \\', "\u0000\n"]], object)
    model = echo_model(host, bytes)

    result = client.infer(
        model, [infer_input("x", sent, binary=binary_in)], outputs=[output("y", binary=binary_out)]
    )

    received = [item if isinstance(item, str) else item.decode() for item in
                result.as_numpy("y").ravel().tolist()]  # fmt: skip
    assert received == sent.ravel().tolist()


@pytest.mark.parametrize("request_form", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_form", [None, "gzip", "deflate"])
def test_compressed_bodies_pass(host, client, request_form, response_form):
    model = echo_model(host, np.float32)
    sent = np.zeros((1, 50_000), np.float32)

    result = client.infer(
        model,
        [infer_input("x", sent, binary=True)],
        request_compression_algorithm=request_form,
        response_compression_algorithm=response_form,
    )

    assert np.array_equal(result.as_numpy("y"), sent)


def test_calls_beside_inference_answer(host, client):
    model = echo_model(host, np.float32)

    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(model)
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["extensions"]
    assert client.get_model_metadata(model)["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, -1]}
    ]
    assert client.get_model_config(model)["max_batch_size"] == 4
    account = client.get_inference_statistics(model, headers=host.token)["model_stats"][0]
    assert account["name"] == model


def test_versions_are_served_side_by_side(host, client):
    for version in (1, 2, 10):
        host.triton.bind(
            "Versioned",
            lambda requests, version=version: [{"y": r["x"] * 0 + version} for r in requests],
            [Tensor(name="x", dtype=np.float32, shape=(1,))],
            [Tensor(name="y", dtype=np.float32, shape=(1,))],
            model_version=version,
        )
    inputs = [infer_input("x", np.ones((1, 1), np.float32), binary=False)]
    try:
        answers = {
            version: client.infer("Versioned", inputs, model_version=version)
            for version in ("", "1", "2", "10")
        }
        with pytest.raises(InferenceServerException, match="'Versioned' version 3 is not found"):
            client.infer("Versioned", inputs, model_version="3")
        versions = client.get_model_metadata("Versioned")["versions"]
    finally:
        host.triton.unbind("Versioned")

    assert versions == ["1", "2", "10"]
    assert {key: answer.as_numpy("y").item() for key, answer in answers.items()} == {
        "": 10, "1": 1, "2": 2, "10": 10
    }  # fmt: skip
    assert answers[""].get_response()["model_version"] == "10"


def test_asyncio_client_has_many_requests_in_flight(host):
    model = echo_model(host, np.int64)

    async def ask() -> list[int]:
        url = f"127.0.0.1:{host.port}"
        async with tritonclient.http.aio.InferenceServerClient(url) as client:
            assert await client.is_model_ready(model)

            async def one(number):
                tensor = infer_input("x", np.array([[number]]), binary=number % 2 == 0)
                result = await client.infer(model, [tensor], request_id=str(number))
                assert result.get_response()["id"] == str(number)
                return int(result.as_numpy("y").item())

            return await asyncio.gather(*(one(number) for number in range(50)))

    assert asyncio.run(ask()) == list(range(50))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_gets_an_answer(host):
    model = host.bind(lambda requests: [{"y": request["x"] + 1} for request in requests])
    body = {"id": "c", "inputs": [
        {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [[1, 2.5]]}
    ]}  # fmt: skip

    result = subprocess.run(
        ["curl", "-sS", "-i", "-H", "Expect: 100-continue", "--data-binary", "@-",
         f"http://127.0.0.1:{host.port}/v2/models/{model}/infer"],
        input=json.dumps(body).encode(), capture_output=True, check=True, timeout=DEADLINE_S,
    )  # fmt: skip

    interim, head, answer = result.stdout.split(b"\r\n\r\n")
    assert interim == b"HTTP/1.1 100 Continue"
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert json.loads(answer) == {
        "id": "c",
        "model_name": model,
        "model_version": "1",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [2.0, 3.5]}],
    }
