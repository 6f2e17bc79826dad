# SPDX-License-Identifier: Apache-2.0
"""HTTP as it is on the wire: bodies, headers, connections, and clients that do not behave."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from pytriton.model_config import Tensor
from tests.e2e import http_client
from tests.e2e.http_client import HEADER_LENGTH, binary_body, call, json_body, outputs_of
from tests.e2e.waiting import DEADLINE_S

pytestmark = pytest.mark.both_front_end_modes

ONE = np.ones((1, 1), np.float32)


def post(model: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


@pytest.fixture
def model(host):
    return host.bind(lambda requests: [{"y": request["x"]} for request in requests])


def test_json_answer_has_this_form_to_the_byte(host, model):
    body = json_body({"x": np.array([[0.1, 2, -1.5]], np.float32)}, id="7")

    answer = call(host.port, f"/v2/models/{model}/infer", body)

    assert answer.headers["content-type"] == "application/json"
    assert (
        answer.body
        == (
            f'{{"id":"7","model_name":"{model}","model_version":"1","outputs":[{{"name":"y",'
            '"datatype":"FP32","shape":[1,3],"data":[0.10000000149011612,2.0,-1.5]}]}'
        ).encode()
    )


def test_binary_answer_has_this_form_to_the_byte(host, model):
    body, headers = binary_body({"x": np.array([[1, 2]], np.float32)})

    answer = call(host.port, f"/v2/models/{model}/infer", body, headers)

    head = (
        f'{{"model_name":"{model}","model_version":"1","outputs":[{{"name":"y","datatype":"FP32",'
        '"shape":[1,2],"parameters":{"binary_data_size":8}}]}'
    ).encode()
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers[HEADER_LENGTH.lower()] == str(len(head))
    assert answer.body == head + np.array([1, 2], "<f4").tobytes()


def test_body_alone_is_the_only_input(host):
    model = host.bind(lambda requests: [{"y": request["x"]} for request in requests])

    answer = call(
        host.port, f"/v2/models/{model}/infer", np.arange(3, dtype="<f4").tobytes(),
        {HEADER_LENGTH: "0"},
    )  # fmt: skip

    assert outputs_of(answer)["y"].tolist() == [[0, 1, 2]]


def test_headers_become_parameters_where_they_match(run_triton):
    seen = []
    triton = run_triton(http_header_forward_pattern="(X-My-.*|my-.*)")

    def record(requests):
        seen.extend(dict(request.parameters) for request in requests)
        return [{"y": request["x"]} for request in requests]

    tensor = {"dtype": np.float32, "shape": (-1,)}
    triton.bind("Model", record, [Tensor(name="x", **tensor)], [Tensor(name="y", **tensor)])
    port = triton._config.http_port
    headers = {"X-My-Name": "value", "My-Number": "7", "Other": "no"}

    http_client.infer(port, "Model", {"x": ONE}, headers=headers, parameters={"own": 1})
    http_client.infer(port, "Model", {"x": ONE})

    assert seen == [{"own": 1, "X-My-Name": "value", "My-Number": "7"}, {}]


def test_slow_reader_gets_what_it_was_due_when_the_model_changes_its_memory(host):
    """An answer is what the callable returned, even if it writes to the array afterwards."""
    kept = []

    def keep_and_spoil(requests):
        for array in kept:
            array[:] = -1
        kept.extend(request["x"] for request in requests)
        return [{"y": request["x"]} for request in requests]

    model = host.bind(keep_and_spoil, batching=False)
    array = np.arange(8 << 20, dtype=np.float32)
    body, headers = binary_body({"x": array})
    lines = [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection(("127.0.0.1", host.port), timeout=DEADLINE_S) as slow:
        slow.sendall(post(model, body, *lines, "Connection: close"))
        received = bytearray(slow.recv(1 << 16))  # the rest waits in the server
        http_client.infer(host.port, model, {"x": np.zeros(1, np.float32)})
        while piece := slow.recv(1 << 20):
            received += piece

    assert kept[0][0] == -1
    assert received.endswith(array.tobytes())


def test_unbatched_model_config_says_so(host):
    model = host.bind(lambda requests: requests, batching=False)
    config = host.get(f"/v2/models/{model}/config").json

    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
