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
    PyTritonClientModelDoesntSupportBatchingError,
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


def test_sample_by_position(client):
    result = client.infer_sample(A, B)

    assert sorted(result) == ["add", "sub"]
    np.testing.assert_array_equal(result["add"], A + B)
    np.testing.assert_array_equal(result["sub"], A - B)
    assert result["add"].dtype == np.float32


def test_sample_by_name_in_any_order(client):
    result = client.infer_sample(b=B, a=A)

    np.testing.assert_array_equal(result["sub"], A - B)


def test_batch_keeps_its_axis(client):
    batch = np.stack([A, B, A])

    result = client.infer_batch(batch, batch)

    np.testing.assert_array_equal(result["add"], batch * 2)


def test_model_without_batching_takes_samples_as_they_are(url):
    with ModelClient(url, "Plain") as client:
        result = client.infer_sample(A)

        np.testing.assert_array_equal(result["y"], A)
        assert not client.is_batching_supported


def test_model_without_batching_takes_no_batch(url):
    with (
        ModelClient(url, "Plain") as client,
        pytest.raises(PyTritonClientModelDoesntSupportBatchingError, match="Plain"),
    ):
        client.infer_batch(A)


def test_bytes_come_back_as_they_went(url):
    words = np.array([b"one", b"", b"nul\x00", "zwölf".encode()], dtype=object)
    with ModelClient(url, "Text") as client:
        result = client.infer_sample(words)

    assert result["y"].tolist() == words.tolist()
    assert result["y"].dtype == object


def test_fixed_width_bytes_are_taken(url):
    with ModelClient(url, "Text") as client:
        result = client.infer_sample(np.array([b"a", b"bc"]))

    assert result["y"].tolist() == [b"a", b"bc"]


def test_bytes_of_numpy_s_own_type_are_taken(url):
    words = np.array(list(np.array([b"one", b"two"])), dtype=object)
    assert type(words[0]) is np.bytes_
    with ModelClient(url, "Text") as client:
        result = client.infer_sample(words)

    assert result["y"].tolist() == [b"one", b"two"]


def test_large_tensors_come_back_as_they_went(url):
    large = np.arange(2_000_000, dtype=np.float32)
    with ModelClient(url, "Large") as client:
        result = client.infer_sample(large)

    np.testing.assert_array_equal(result["y"], large)


def test_array_that_is_not_contiguous_is_sent_in_its_order(url):
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    with ModelClient(url, "Large") as client:
        result = client.infer_batch(matrix.T)

    np.testing.assert_array_equal(result["y"], matrix.T)


def test_optional_input_may_be_left_out(url):
    with ModelClient(url, "Optional") as client:
        np.testing.assert_array_equal(client.infer_sample(A)["total"], A)
        np.testing.assert_array_equal(client.infer_sample(a=A, b=B)["total"], A + B)


def test_priority_and_timeout_are_for_the_queue(url):
    parameters = {"text": "a", "priority": 1, "timeout": 60_000_000}
    with ModelClient(url, "Parameters") as client:
        result = client.infer_sample(A, parameters=parameters)

    assert result["parameters"][0].decode() == "text=a"


def test_parameters_and_headers_reach_the_model(url):
    with ModelClient(url, "Parameters") as client:
        result = client.infer_sample(
            A,
            parameters={"text": "a", "number": 2, "truth": True},
            headers={"x-number": 3, "x-text": "b"},
        )

    told = result["parameters"][0].decode().lower()
    assert sorted(told.split(";")) == [
        "number=2", "text=a", "truth=true", "x-number=3", "x-text=b",
    ]  # fmt: skip


def test_server_s_error_is_told(url):
    with ModelClient(url, "Failing") as client:
        with pytest.raises(
            PyTritonClientInferenceServerError, match="this model always fails"
        ) as raised:
            client.infer_sample(A)

        assert "Error occurred during inference request. Message:" in str(raised.value)


@pytest.mark.parametrize(
    "inputs",
    [
        {"a": A, "b": B, "c": A},
        {"a": A.astype(np.float64), "b": B},
        {"a": A[None], "b": B},
    ],
    ids=["unknown input", "wrong type", "wrong rank"],
)
def test_request_that_contradicts_the_model_is_refused_and_the_client_goes_on(client, inputs):
    with pytest.raises(PyTritonClientInferenceServerError):
        client.infer_sample(**inputs)

    np.testing.assert_array_equal(client.infer_sample(A, B)["add"], A + B)


def test_batch_that_is_too_large_is_refused_in_the_words_of_the_guides(client):
    batch = np.zeros((17, 2), np.float32)

    with pytest.raises(
        PyTritonClientInferenceServerError,
        match=r"\[request id: 0\] inference request batch-size must be <= 16 for 'AddSub'",
    ):
        client.infer_batch(batch, batch)


def test_decoupled_model_is_refused(url):
    with (
        ModelClient(url, "Counter") as client,
        pytest.raises(PyTritonClientInferenceServerError, match="DecoupledModelClient"),
    ):
        client.infer_sample(np.array([1], np.int32))


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


def test_text_has_to_be_encoded(url):
    with ModelClient(url, "Text") as client, pytest.raises(RuntimeError, match="Encode it"):
        client.infer_sample(np.array(["text"]))


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
