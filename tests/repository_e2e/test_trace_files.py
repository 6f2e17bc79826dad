# SPDX-License-Identifier: Apache-2.0
"""Files of traces of a server with a repository, over both protocols."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.e2e import http_client
from tests.e2e.flood import flood
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import (
    DECOUPLED,
    TRACED_CALLER,
    code,
    config,
    decoupled_code,
    ensemble,
    model,
)
from tests.trace_files import await_requests, requests

BODY = http_client.json_body({"X": np.ones((1, 2), np.float32)})
MODELS = {
    "leaf": model(code("print('context', request.trace().get_context(), flush=True)\ny = 2 * x")),
    "caller": model(code(TRACED_CALLER)),
    "pipe": ensemble("leaf", "leaf"),
    "stream": model(decoupled_code("send(x)\nsend(x)"), config(DECOUPLED)),
}
MODEL_TIMES = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
]
SENT = ["INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"]
ALL_TIMES = ["HTTP_RECV_START", "HTTP_RECV_END", *MODEL_TIMES, *SENT]


def start(starter, folder, *settings, **options):
    file = folder / "trace.json"
    flags = [f"--trace-config={text}" for text in (f"triton,file={file}", *settings)]
    return starter(MODELS, flags=flags, **options).await_ready()


@pytest.fixture(scope="module")
def server(start_module_server, tmp_path_factory):
    """A server whose settings each test changes, with the folder of its files."""
    folder = tmp_path_factory.mktemp("traces")
    server = start(start_module_server, folder, "triton,log-frequency=1")
    server.traces = folder
    return server


def change(server, settings, name=""):
    path = f"/v2/models/{name}/trace/setting" if name else "/v2/trace/setting"
    answer = server.post(path, settings)
    assert answer.status == 200, answer
    return answer.json


@pytest.fixture
def tracing(server):
    """The same server while it traces every request, without earlier files."""
    change(server, {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    yield server
    change(server, {"trace_level": None, "trace_rate": None, "trace_count": None})
    for path in server.traces.iterdir():
        path.unlink()


def post(server, name, body=BODY, **headers):
    return http_client.call(server.http_port, f"/v2/models/{name}/infer", body, headers)


def grpc_input():
    tensor = triton_grpc.InferInput("X", (1, 2), "FP32")
    tensor.set_data_from_numpy(np.ones((1, 2), np.float32))
    return tensor


def test_request_over_http_tells_all_its_times(tracing):
    tracing.infer("leaf", 1, 2, id="seven")

    (request,) = await_requests(tracing.traces, 1)
    assert request.names == ALL_TIMES
    times = [request.ns[name] for name in ALL_TIMES if name != "INFER_RESPONSE_COMPLETE"]
    assert times == sorted(times)
    cost = request.model.pop("cost")
    assert (cost["bytes_in"], cost["bytes_out"]) == (8, 8)
    assert {**request.model, "id": 0} == {
        "id": 0,
        "model_name": "leaf",
        "model_version": 1,
        "request_id": "seven",
    }


def test_request_over_grpc_tells_all_its_times(tracing):
    with tracing.grpc_client() as client:
        client.infer("leaf", [grpc_input()])

    (request,) = await_requests(tracing.traces, 1)
    sent = [name.replace("HTTP", "GRPC") for name in SENT]
    waited = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"]
    assert request.names == [*waited, *MODEL_TIMES, *sent]


def test_stream_over_grpc_tells_of_each_response(tracing):
    answers = []
    with tracing.grpc_client() as client:
        client.start_stream(lambda result, error: answers.append(error))
        client.async_stream_infer("stream", [grpc_input()], enable_empty_final_response=True)
        assert eventually(lambda: len(answers) == 3)
        client.stop_stream()

    (request,) = await_requests(tracing.traces, 1)
    assert request.names.count("GRPC_SEND_END") == 3
    assert request.names.count("COMPUTE_START") == 1


def test_steps_of_an_ensemble_are_children(tracing):
    tracing.infer("pipe")

    whole, *steps = await_requests(tracing.traces, 3)
    assert "COMPUTE_START" not in whole.names
    assert [step.model["parent_id"] for step in steps] == [whole.id] * 2
    assert [step.names for step in steps] == [MODEL_TIMES] * 2
    assert len(list(tracing.traces.iterdir())) == 1


def test_calls_of_a_model_are_children_if_the_trace_is_passed_on(tracing):
    tracing.infer("caller", 1)
    outer, inner = await_requests(tracing.traces, 2)
    assert (inner.model["model_name"], inner.model["request_id"]) == ("leaf", "call")
    assert inner.model["parent_id"] == outer.id
    assert outer.ns["COMPUTE_START"] < inner.ns["REQUEST_START"]
    assert inner.ns["REQUEST_END"] < outer.ns["COMPUTE_END"]

    tracing.infer("caller", 0)
    assert len(await_requests(tracing.traces, 3)) == 3


def test_model_sees_no_spans(tracing):
    tracing.infer("leaf")

    await_requests(tracing.traces, 1)
    assert set(tracing.stdout.split("\n")) >= {"context None"}
    assert "traceparent" not in tracing.stdout


@pytest.mark.parametrize("size", [2, 100_000])
def test_tensors_are_written(tracing, size):
    change(tracing, {"trace_level": ["TENSORS"]})
    row = np.arange(size, dtype=np.float32)
    with tracing.http_client() as client:
        tensor = triton_http_input(row)
        client.infer("leaf", [tensor])

    (request,) = await_requests(tracing.traces, 1)
    assert request.names == []
    (queued, given), (made, taken) = request.tensors
    assert (queued, made) == ("TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT")
    assert given == {
        "name": "X",
        "data": ",".join(f"{value:g}" for value in row.tolist()),
        "shape": f"1,{size}",
        "dtype": "FP32",
    }
    assert taken == {
        **given, "name": "Y", "data": ",".join(f"{2 * value:g}" for value in row.tolist())
    }  # fmt: skip


def triton_http_input(row):
    tensor = triton_http.InferInput("X", (1, len(row)), "FP32")
    tensor.set_data_from_numpy(row.reshape(1, -1))
    return tensor


def test_tensors_of_steps_and_streams_are_written(tracing):
    change(tracing, {"trace_level": ["TENSORS", "TIMESTAMPS"]})
    tracing.infer("pipe", 1)

    found = [
        [(name, tensor["data"]) for name, tensor in each.tensors]
        for each in await_requests(tracing.traces, 3)
    ]
    queued, made = "TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT"
    assert found == [
        [(queued, "1"), (made, "4")],
        [(queued, "1"), (made, "2")],
        [(queued, "2"), (made, "4")],
    ]


def test_many_requests_at_once_are_sampled_as_one_by_one(server):
    """Also those that travel together: a traced one takes the ordinary way."""
    change(server, {"trace_level": ["TIMESTAMPS"], "trace_rate": "100", "log_frequency": "0"})
    body = http_client.json_body({"X": np.ones((1, 1), np.float32)})
    request = (
        b"POST /v2/models/leaf/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    sent = 2008
    statuses = flood(server.http_port, [request], sent, connections=16)
    change(server, {"trace_level": ["OFF"]})

    assert statuses == {200: sent}
    # Each front end counts its own, and there are at most 8 by default.
    assert eventually(lambda: sent // 100 - 8 <= len(requests(server.traces)) <= sent // 100)
    for each in requests(server.traces):
        assert each.names == ALL_TIMES
    change(server, {"trace_level": None, "trace_rate": None, "log_frequency": None})
    for path in server.traces.iterdir():
        path.unlink()


def test_one_file_is_whole_while_the_server_runs_and_at_its_end(start_server, tmp_path):
    server = start(start_server, tmp_path, "level=TIMESTAMPS", "rate=1")
    for number in itertools.count(1):
        server.infer("leaf")
        await_requests(tmp_path, number)
        if number == 2:
            break
    server.infer("leaf")

    assert server.end() == 0
    assert len(json.loads((tmp_path / "trace.json").read_bytes())) == 3 * (len(ALL_TIMES) + 1)


def test_deprecated_flags_do_the_same(start_server, tmp_path):
    file = tmp_path / "trace.json"
    flags = [
        f"--trace-file={file}",
        "--trace-level=TIMESTAMPS",
        "--trace-rate=1",
        "--trace-count=2",
        "--trace-log-frequency=1",
    ]
    server = start_server({"leaf": model(code())}, flags=flags).await_ready()
    for _ in range(3):
        server.infer("leaf")

    assert len(await_requests(tmp_path, 2)) == 2
    assert sorted(path.name for path in tmp_path.glob("trace*")) == ["trace.json.0", "trace.json.1"]
