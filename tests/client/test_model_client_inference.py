# SPDX-License-Identifier: Apache-2.0
"""What `ModelClient` sends and gives back over both protocols, with our server and the real one."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytriton.client import ModelClient
from pytriton.client.client import DEFAULT_INFERENCE_TIMEOUT_S, BaseModelClient
from pytriton.client.exceptions import (
    PyTritonClientInferenceServerError,
    PyTritonClientValueError,
)
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from pytriton.testing import FakeClock
from tests.client.operands import A, B
from tests.client.scripted_server import ScriptedServer
from tests.free_ports import free_ports

PLAIN = TritonModelConfig(
    "M",
    batching=False,
    max_batch_size=0,
    inputs=[TensorSpec("x", (-1,), np.float32)],
    outputs=[TensorSpec("y", (-1,), np.float32)],
)


def test_bytes_of_numpy_s_own_type_are_taken(url):
    words = np.array(list(np.array([b"one", b"two"])), dtype=object)
    assert type(words[0]) is np.bytes_
    with ModelClient(url, "Text") as client:
        result = client.infer_sample(words)

    assert result["y"].tolist() == [b"one", b"two"]


def test_priority_and_timeout_are_for_the_queue(url):
    parameters = {"text": "a", "priority": 1, "timeout": 60_000_000}
    with ModelClient(url, "Parameters") as client:
        result = client.infer_sample(A, parameters=parameters)

    assert result["parameters"][0].decode() == "text=a"


@pytest.mark.parametrize("method", ["infer_sample", "infer_batch"])
@pytest.mark.parametrize(
    "positional,named,text",
    [
        ((), {}, "Provide input data"),
        ((A,), {"b": B}, "Use either positional either keyword method arguments convention"),
        (([1.0], A), {}, "is not a numpy array"),
        ((A,), {"parameters": [1]}, "Parameters must be a dict"),
        ((A,), {"headers": {"x": 1.5}}, "Headers: expected a value of type"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(method, positional, named, text):
    (port,) = free_ports(1)
    with (
        ModelClient(f"localhost:{port}", "Model") as client,
        pytest.raises(PyTritonClientValueError, match=text),
    ):
        getattr(client, method)(*positional, **named)


def test_request_ids_count_up_from_zero(url):
    with ModelClient(url, "AddSub") as client:
        for number in range(2):
            with pytest.raises(PyTritonClientInferenceServerError, match=f"request id: {number}"):
                client.infer_batch(np.zeros((17, 2), np.float32), np.zeros((17, 2), np.float32))


def test_many_threads_share_a_client(url):
    with ModelClient(url, "AddSub") as client:
        problems = []

        def work(seed):
            for number in range(15):
                value = np.array([seed, number], np.float32)
                result = client.infer_sample(value, B)
                if not np.array_equal(result["add"], value + B):
                    problems.append((seed, number, result))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert problems == []


def test_default_limit_of_an_inference_is_a_minute():
    assert DEFAULT_INFERENCE_TIMEOUT_S == 60.0
    assert issubclass(ModelClient, BaseModelClient)


STRANGE_BODIES = [
    b"<html>who are you?</html>",
    b"",
    b"[]",
    b'{"outputs":null}',
    b'{"outputs":[{}]}',
    b'{"outputs":[{"name":"y","datatype":"FP32","shape":[4],"data":[1]}]}',
]


@pytest.mark.parametrize("body", STRANGE_BODIES)
def test_answer_that_is_none_of_triton_s_is_the_server_s_error(body):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with (
        ScriptedServer([answer]) as server,
        ModelClient(server.url, "M", model_config=PLAIN, ensure_model_is_ready=False) as client,
        pytest.raises(
            PyTritonClientInferenceServerError, match=r"got one that cannot be read.*[^.]\. Is this"
        ),
    ):
        client.infer_sample(A)


def test_preparing_a_large_request_takes_of_its_time(monkeypatch):
    monkeypatch.setattr("pytriton.client.base.time", FakeClock(start_s=102.0))
    with ModelClient("grpc://localhost:1", "M", inference_timeout_s=5.0) as client:
        assert client._limit_s({"x": A}, 100.0) == 5.0
        assert client._limit_s({"x": np.zeros(2**18, np.float32)}, 100.0) == 3.0


@pytest.mark.parametrize(
    "headers, problem",
    [
        ({"a b": "x"}, "got 'a b'"),
        ({"": "x"}, "got ''"),
        ({"x": "\u00e4"}, "printable ASCII characters for gRPC in 'x'"),
        ({"x": "a\nb"}, "printable ASCII characters for gRPC in 'x'"),
    ],
)
def test_header_that_grpc_cannot_send_is_named(headers, problem):
    client = ModelClient("grpc://localhost:1", "Model")
    with client, pytest.raises(PyTritonClientValueError, match=problem):
        client._headers(headers)


def test_names_of_headers_are_written_small_for_grpc():
    with ModelClient("grpc://localhost:1", "Model") as client:
        assert client._headers({"X-Number": 1}) == {"x-number": "1"}


def test_token_that_grpc_cannot_send_is_refused_without_being_told():
    with pytest.raises(PyTritonClientValueError, match="printable ASCII") as raised:
        ModelClient("grpc://localhost:1", "Model", access_token="s\u00e9cret")

    assert "cret" not in str(raised.value)
