# SPDX-License-Identifier: Apache-2.0
"""Calls as such: deadlines, cancellation, compression, keepalive, other tools, and the end."""

from __future__ import annotations

import queue
import shutil
import subprocess
import threading

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from pytriton.base.protos import service_pb2
from tests.differential.grpc_case import SERVICE
from tests.e2e.grpc_server import add_sub_inputs, grpc_server, tensor
from tests.e2e.waiting import DEADLINE_S


@pytest.fixture(scope="module")
def running():
    with grpc_server() as started:
        yield started


@pytest.fixture
def server(running):
    running.entered = threading.Semaphore(0)
    running.gate.clear()
    yield running
    running.gate.set()


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.address) as opened:
        yield opened


@pytest.mark.parametrize("level", ["low", "high"])
def test_responses_are_compressed_where_the_server_is_told_to(level):
    with (
        grpc_server(grpc_infer_response_compression_level=level) as server,
        triton_grpc.InferenceServerClient(server.address) as client,
    ):
        result = client.infer("identity", [tensor("x", np.zeros(100_000, np.uint8))])

        assert not result.as_numpy("y").any()


def test_clients_pings_within_the_policy_keep_the_connection(server):
    options = triton_grpc.KeepAliveOptions(keepalive_time_ms=1000, keepalive_timeout_ms=1000)
    with triton_grpc.InferenceServerClient(server.address, keepalive_options=options) as client:
        assert client.infer("add_sub", add_sub_inputs()).as_numpy("add").item() == 3.0


def test_servers_pings_find_a_client_alive():
    with (
        grpc_server(
            grpc_keepalive_time=20,
            grpc_keepalive_timeout=5000,
            grpc_keepalive_permit_without_calls=True,
            grpc_http2_max_pings_without_data=0,
        ) as server,
        triton_grpc.InferenceServerClient(server.address) as waiting,
        grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as busy,
    ):
        answers: queue.Queue = queue.Queue()
        waiting.async_infer(
            "gated",
            [tensor("x", np.array([1], np.float32))],
            lambda result, error: answers.put((result, error)),
        )
        assert server.entered.acquire(timeout=DEADLINE_S)
        # Another connection is served for a while; the first is silent, and so pinged.
        for _ in range(500):
            busy.unary_unary(f"{SERVICE}/ServerLive")(b"", timeout=DEADLINE_S)
        server.gate.set()

        _, error = answers.get(timeout=DEADLINE_S)
        assert error is None


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_calls_a_method(server):
    command = ["curl", "-sS", "--http2-prior-knowledge", "-D", "-", "-o", "-"]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    command += ["--data-binary", "@-", f"http://{server.address}{SERVICE}/ServerLive"]

    seen = subprocess.run(command, input=b"\0\0\0\0\0", capture_output=True, check=True)

    assert b"grpc-status: 0" in seen.stdout
    assert b"\0\0\0\0\x02\x08\x01" in seen.stdout


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
def test_h2load_fails_no_request(server, tmp_path):
    body = tmp_path / "request"
    request = service_pb2.ModelInferRequest(model_name="add_sub")
    for name in ("a", "b"):
        request.inputs.add(name=name, datatype="FP32", shape=[1, 1])
        request.raw_input_contents.append(np.float32(1).tobytes())
    message = request.SerializeToString()
    body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    command = ["h2load", "-n2000", "-c8", "-m10", f"-d{body}"]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    command.append(f"http://{server.address}{SERVICE}/ModelInfer")

    seen = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "2000 succeeded, 0 failed, 0 errored" in seen.stdout
