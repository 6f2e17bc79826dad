# SPDX-License-Identifier: Apache-2.0
"""Lines of the access log say what their requests cost, if that is asked for."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from pytriton.client import DecoupledModelClient, ModelClient
from pytriton.decorators import batch, model
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tests.e2e.conftest import new_ports
from tests.e2e.waiting import eventually, whole_lines

TENSORS = [Tensor(name="a", dtype=np.float32, shape=(1,))]
ROW = np.ones((1, 1), np.float32)
BODY = json.dumps(
    {"inputs": [{"name": "a", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
).encode()
FIELDS = [
    *("worker_s", "server_s", "queue_s", "tensor_bytes_in", "tensor_bytes_out"),
    *("tokens_in", "tokens_out"),
]
BUSY_S = 0.005
CLIENTS, REQUESTS = 8, 30


@batch
def busy(a):
    """Takes some processor time."""
    until_s = time.thread_time() + BUSY_S
    while time.thread_time() < until_s:
        pass
    return {"a": a}


def stream(requests):
    for _ in range(3):
        yield requests


def failing(requests):
    raise ValueError("no")


@model(openai="chat,completions")
def speaker(prompt: str, max_tokens: int = 3) -> Iterator[str]:
    """Says as many words as it may."""
    for _ in range(max_tokens):
        yield "word "


@pytest.fixture(scope="module", params=[0, 2], ids=["one-process", "front-ends"])
def server(request, tmp_path_factory):
    """The ports of a server, and a function that returns lines of its log."""
    path = tmp_path_factory.mktemp("access") / "access.log"
    ports = new_ports()
    config = TritonConfig(
        **ports,
        access_log=path,
        access_log_format="json",
        access_log_fields=[",".join(FIELDS)],
        frontend_processes=request.param,
    )
    decoupled = ModelConfig(decoupled=True)
    with Triton(config=config) as triton:
        triton.bind("Busy", busy, TENSORS, TENSORS)
        triton.bind("Same", lambda requests: requests, TENSORS, TENSORS)
        triton.bind("Batch", batch(lambda a: {"a": a}), TENSORS, TENSORS)
        triton.bind("Stream", stream, TENSORS, TENSORS, config=decoupled)
        triton.bind("Failing", failing, TENSORS, TENSORS)
        triton.bind(speaker)

        def lines(count, **wanted):
            found = []

            def read():
                found[:] = [
                    line
                    for line in map(json.loads, whole_lines(path))
                    if all(str(line.get(name, "")).endswith(wanted[name]) for name in wanted)
                ]
                return len(found) >= count

            assert eventually(read), path.read_text()
            return found

        yield ports, lines


def ask(ports, target, body=BODY):
    connection = http.client.HTTPConnection("localhost", ports["http_port"])
    connection.request("POST", target, body)
    status = connection.getresponse().status
    connection.close()
    return status


def test_http_request_has_its_costs(server):
    ports, lines = server
    assert ask(ports, "/v2/models/Busy/infer") == 200
    (line,) = lines(1, model="Busy", protocol="HTTP")

    assert list(line)[-len(FIELDS) :] == FIELDS
    assert line["worker_s"] >= BUSY_S
    assert (line["tensor_bytes_in"], line["tensor_bytes_out"]) == (4, 4)
    assert (line["tokens_in"], line["tokens_out"]) == (0, 0)
    assert line["queue_s"] > 0


@pytest.mark.parametrize("name", ["Same", "Batch"])
def test_each_of_many_small_requests_has_its_own_costs(server, name):
    ports, lines = server
    target = f"/v2/models/{name}/infer"

    def work():
        connection = http.client.HTTPConnection("localhost", ports["http_port"])
        for _ in range(REQUESTS):
            connection.request("POST", target, BODY)
            connection.getresponse().read()
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = lines(CLIENTS * REQUESTS, path=target)

    assert len(found) == CLIENTS * REQUESTS
    assert {(line["tensor_bytes_in"], line["tensor_bytes_out"]) for line in found} == {(4, 4)}
    assert all(set(FIELDS) < set(line) for line in found)


def test_grpc_calls_have_their_costs_and_a_stream_those_of_all_responses(server):
    ports, lines = server
    url = f"grpc://localhost:{ports['grpc_port']}"
    with ModelClient(url, "Batch") as client:
        for _ in range(40):  # most of them travel as columns
            client.infer_batch(ROW)
    with DecoupledModelClient(url, "Stream") as client:
        assert len(list(client.infer_batch(ROW))) == 3
    calls = lines(40, path="/ModelInfer")
    (streamed,) = lines(1, path="ModelStreamInfer", model="Stream")

    assert {(line["tensor_bytes_in"], line["tensor_bytes_out"]) for line in calls} == {(4, 4)}
    assert (streamed["tensor_bytes_in"], streamed["tensor_bytes_out"]) == (4, 12)


@pytest.mark.parametrize("choices", [1, 3])
def test_chat_has_its_tokens(server, choices):
    ports, lines = server
    messages = [{"role": "user", "content": "hi"}]
    chat = {"model": "speaker", "messages": messages, "max_tokens": 4 + choices, "n": choices}
    seen = len(lines(0, path="/v1/chat/completions"))
    assert ask(ports, "/v1/chat/completions", json.dumps(chat)) == 200
    line = lines(seen + 1, path="/v1/chat/completions")[-1]

    assert line["tokens_out"] == choices * (4 + choices)


def test_unknown_field_is_refused_with_the_names_that_there_are(tmp_path):
    config = TritonConfig(
        **new_ports(), access_log=tmp_path / "a.log", access_log_fields=["worker"]
    )
    with pytest.raises(Exception, match=r"names of worker_s, .*, got 'worker'"):
        Triton(config=config).run()
