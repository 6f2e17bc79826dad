# SPDX-License-Identifier: Apache-2.0
"""Front ends, or the core, that run out of memory: only requests that need much are refused."""

from __future__ import annotations

import contextlib
import resource
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.e2e.http_client import binary_body, call, json_body
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import model
from tests.repository_e2e.test_front_end_processes import TWO, Client, front_ends

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="others cannot limit a process")

LARGE = np.full((1, 14_000_000), 7, np.float32)
INFER = "/v2/models/plain/infer"
REASONS = ("no memory", "no room", "no thread", "no process", "ended before it was done")


@pytest.fixture
def server(start_server):
    flags = [*TWO, "--http-max-input-size=1000000000"]
    return start_server({"plain": model()}, flags=flags).await_ready()


@contextlib.contextmanager
def limited(processes, limit):
    """Leave processes less memory than a large request takes, or only small files."""
    before = [process.rlimit(limit) for process in processes]
    for process, (_, hard) in zip(processes, before, strict=True):
        size = 4 << 20
        if limit == resource.RLIMIT_AS:
            size = process.memory_info().vms + (24 << 20)
        process.rlimit(limit, (size, hard))
    yield
    for process, numbers in zip(processes, before, strict=True):
        process.rlimit(limit, numbers)


def infer_binary(server):
    answer = call(server.http_port, INFER, *binary_body({"X": LARGE}))
    return answer.status, "" if answer.status == 200 else answer.error


def infer_json(server):
    # The answer is not in JSON: without memory, orjson crashes the process (seen with 3.13.0).
    outputs = [{"name": "Y", "parameters": {"binary_data": True}}]
    body = json_body({"X": LARGE[:, :500_000]}, outputs=outputs)
    answer = call(server.http_port, INFER, body)
    return answer.status, "" if answer.status == 200 else answer.error


def infer_grpc(server):
    tensor = triton_grpc.InferInput("X", LARGE.shape, "FP32").set_data_from_numpy(LARGE)
    with server.grpc_client() as client:
        try:
            answer = client.infer("plain", [tensor], client_timeout=DEADLINE_S)
        except InferenceServerException as error:
            return error.status(), error.message()
        return 200 if (answer.as_numpy("Y") == LARGE).all() else 0, ""


def check_shortage(server, processes, limit):
    """Send large requests while there is a shortage, beside clients that send small ones."""
    old = {each.pid for each in front_ends(server)}
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(server)) for _ in range(4)]
        assert eventually(lambda: all(len(each.statuses) > 20 for each in clients))
        with limited(processes, limit), ThreadPoolExecutor(8) as pool:
            ways = [infer_binary, infer_json, infer_grpc] * 4
            answers = [pool.submit(way, server) for way in ways]
            for port, path in (
                (server.http_port, "/v2/health/live"),
                (server.http_port, "/v2/health/ready"),
                (server.metrics_port, "/metrics"),
            ):
                assert call(port, path).status == 200
            results = [each.result() for each in answers]
        recovered = [way(server) for way in (infer_binary, infer_json, infer_grpc)]
        counts = [len(each.statuses) for each in clients]
        assert eventually(
            lambda: all(
                len(each.statuses) > count + 5 for each, count in zip(clients, counts, strict=True)
            )
        )

    assert recovered == [(200, "")] * 3
    refused = [result for result in results if result != (200, "")]
    assert {status for status, _ in refused} <= {503, "StatusCode.UNAVAILABLE"}, refused
    assert all(any(reason in text for reason in REASONS) for _, text in refused), refused
    assert refused
    assert [each.losses for each in clients] == [[]] * 4, "other clients were disturbed"
    assert all(set(each.statuses) <= {200, 503} for each in clients)
    assert {each.pid for each in front_ends(server)} == old


def test_front_ends_without_memory_refuse_large_requests_and_serve_others(server):
    check_shortage(server, front_ends(server), resource.RLIMIT_FSIZE)


def test_core_without_memory_refuses_large_requests_and_serves_others(server):
    check_shortage(server, [psutil.Process(server.pid)], resource.RLIMIT_AS)
