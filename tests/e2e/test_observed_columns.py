# SPDX-License-Identifier: Apache-2.0
"""Small requests that travel together leave in logs and traces what each leaves alone."""

from __future__ import annotations

import http.client
import json
import queue
import re
import socket

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from pytriton.model_config import Tensor
from tests.e2e.waiting import eventually
from tests.trace_files import await_requests

CLIENTS, ROUNDS = 16, 10
TENSORS = [Tensor(name="a", dtype=np.float32, shape=(1,))]
INPUT = {"name": "a", "shape": [1, 1], "datatype": "FP32", "data": [1]}
INFER = "/v2/models/Same/infer"
END = re.compile(r"\"request for model 'Same' took \d+ us and was answered with 1 response\(s\)\"")


@pytest.fixture(params=[0, 2], ids=["one-process", "front-ends"])
def server(request, run_triton, tmp_path):
    """A server, and its log."""
    path = tmp_path / "server.log"
    triton = run_triton(
        log_verbose=1,
        log_file=path,
        trace_config=[f"triton,file={tmp_path}/trace.json", "level=TIMESTAMPS", "rate=1"],
        frontend_processes=request.param,
    )
    triton.bind("Same", lambda requests: requests, TENSORS, TENSORS)
    return triton._config, path


def ask_together(port: int) -> None:
    """Send one request from each client, and only then read the answers."""
    body = json.dumps({"inputs": [INPUT]})
    request = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(CLIENTS)]
    for _ in range(ROUNDS):
        for client in clients:
            client.sendall(request.encode())
        for client in clients:
            answer = http.client.HTTPResponse(client)
            answer.begin()
            answer.read()
            assert answer.status == 200
    for client in clients:
        client.close()


def call_together(port: int) -> None:
    """Make many calls of gRPC at a time."""
    tensor = triton_grpc.InferInput("a", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
        ended = queue.SimpleQueue()
        for _ in range(ROUNDS):
            for _ in range(CLIENTS):
                client.async_infer("Same", [tensor], lambda result, error: ended.put(error))
            assert [ended.get() for _ in range(CLIENTS)] == [None] * CLIENTS


def test_each_request_has_two_verbose_lines_and_a_trace(server, tmp_path):
    config, path = server
    ask_together(config.http_port)
    call_together(config.grpc_port)

    def counts():
        text = path.read_text()
        return {
            "HTTP": text.count(f'"HTTP request: POST {INFER}"'),
            "gRPC": text.count('ModelInfer"'),
            "ends": len(END.findall(text)),
        }

    each = CLIENTS * ROUNDS
    expected = {"HTTP": each, "gRPC": each, "ends": 2 * each}
    assert eventually(lambda: counts() == expected), counts()

    traced = await_requests(tmp_path, 2 * CLIENTS * ROUNDS)
    kinds = {tuple(each.names) for each in traced}
    assert len(kinds) == 2  # over HTTP and gRPC
    for each in traced:
        times = list(each.ns.values())
        assert times == sorted(times), each.ns
