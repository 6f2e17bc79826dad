# SPDX-License-Identifier: Apache-2.0
"""Every request over HTTP and gRPC has its line in the access log, however it travels."""

from __future__ import annotations

import http.client
import json
import shlex
import threading

import numpy as np
import pytest

from pytriton.client import DecoupledModelClient, ModelClient
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tests.e2e.conftest import new_ports
from tests.e2e.waiting import eventually, whole_lines

TENSORS = [Tensor(name="a", dtype=np.float32, shape=(1,))]
ROW = np.ones((1, 1), np.float32)
INPUT = {"name": "a", "shape": [1, 1], "datatype": "FP32", "data": [1]}
ID = 'x" 200\nfake'
INFER = "/v2/models/Same/infer"


def stream(requests):
    for _ in range(3):
        yield requests


@pytest.fixture(scope="module", params=["0", "2"], ids=["one-process", "front-ends"])
def server(request, tmp_path_factory):
    """The ports of a server, and the path of its log."""
    path = tmp_path_factory.mktemp("access") / "access.log"
    ports = new_ports()
    config = TritonConfig(
        **ports,
        access_log=path,
        access_log_format="json",
        access_log_health=False,
        frontend_processes=int(request.param),
    )
    with Triton(config=config) as triton:
        triton.bind("Same", lambda requests: requests, TENSORS, TENSORS)
        decoupled = ModelConfig(decoupled=True)
        triton.bind("Stream", stream, TENSORS, TENSORS, config=decoupled)
        yield ports, path


def lines(path, count, wanted):
    """The lines that are wanted, once there are so many."""
    found = []

    def read():
        found[:] = filter(wanted, map(json.loads, whole_lines(path)))
        return len(found) >= count

    assert eventually(read), path.read_text()
    return found


def ask(ports, method, target, body=None, agent="test"):
    connection = http.client.HTTPConnection("localhost", ports["http_port"])
    connection.request(method, target, body, {"User-Agent": agent, "Authorization": "Bearer t0k3n"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_http_requests_are_logged_without_secrets(server):
    ports, path = server
    body = json.dumps({"id": ID, "inputs": [INPUT]})
    ask(ports, "GET", "/v2/health/live", agent="secrets")
    ask(ports, "POST", f"{INFER}?token=t0k3n", body, agent="secrets")
    ask(ports, "GET", "/nothing%0a", agent="secrets")
    logged = lines(path, 2, lambda line: line.get("user_agent") == "secrets")
    infer, nothing = sorted(logged, key=lambda line: line["status"])  # front ends write their own

    assert infer["path"] == INFER
    assert (infer["status"], infer["model"], infer["request_id"]) == (200, "Same", ID)
    assert (infer["bytes_in"], infer["protocol"]) == (len(body), "HTTP")
    assert infer["bytes_out"] > 0
    assert infer["client"].startswith("127.0.0.1:")
    assert (nothing["status"], nothing["path"]) == (404, "/nothing%0a")
    assert "t0k3n" not in path.read_text()


def test_small_requests_that_travel_as_columns_are_logged(server):
    ports, path = server
    body = json.dumps({"inputs": [INPUT]})

    def work():
        connection = http.client.HTTPConnection("localhost", ports["http_port"])
        for _ in range(50):
            connection.request("POST", INFER, body, {"User-Agent": "columns"})
            connection.getresponse().read()
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = lines(path, 200, lambda line: line.get("user_agent") == "columns")

    assert len(found) == 200
    assert {(line["status"], line["model"]) for line in found} == {(200, "Same")}


def test_grpc_calls_are_logged_and_a_stream_at_its_end(server):
    ports, path = server
    url = f"grpc://localhost:{ports['grpc_port']}"
    with ModelClient(url, "Same") as client:
        for _ in range(20):
            client.infer_batch(ROW)
    with DecoupledModelClient(url, "Stream") as client:
        assert len(list(client.infer_batch(ROW))) == 3
    streamed = lines(path, 1, lambda line: line["path"].endswith("ModelStreamInfer"))
    calls = lines(path, 20, lambda line: line["path"].endswith("/ModelInfer"))

    assert {(line["grpc_status"], line["model"]) for line in calls} == {("OK", "Same")}
    assert len(calls) == 20
    assert [(line["grpc_status"], line["model"]) for line in streamed] == [("OK", "Stream")]
    assert streamed[0]["bytes_out"] > 3 * calls[0]["bytes_out"]
    assert not lines(path, 0, lambda line: line["path"].endswith("Ready"))


def test_plain_lines_have_the_same_fields(tmp_path):
    path, ports = tmp_path / "plain.log", new_ports()
    with Triton(config=TritonConfig(**ports, access_log=path)) as triton:
        triton.bind("Same", lambda requests: requests, TENSORS, TENSORS)
        ask(ports, "GET", "/v2/health/ready", agent='a"b c')

    fields = shlex.split(path.read_text())
    assert len(fields) == 12
    assert fields[2:5] == ["HTTP", "GET /v2/health/ready", "200"]
    assert fields[-1] == 'a"b c'
