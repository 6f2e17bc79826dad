# SPDX-License-Identifier: Apache-2.0
"""Files of traces of a server with a repository, over both protocols."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from tests.e2e import http_client
from tests.e2e.flood import flood
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import (
    code,
    model,
)
from tests.trace_files import await_requests, requests

MODELS = {"leaf": model(code("y = 2 * x"))}
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
