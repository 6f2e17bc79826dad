# SPDX-License-Identifier: Apache-2.0
"""Quotas of principals over HTTP and gRPC, in one process and with two front ends."""

from __future__ import annotations

import http.client
import json
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.e2e.http_client import call, json_body
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.named_principals import HEADER, QUOTAS
from tests.repository_e2e.model_files import HOLD, code, config, ensemble, model

COMMAND = (sys.executable, "-m", "tests.named_principals")
CHUNKED = "dynamic_batching { }"
POLICY = "dynamic_batching { default_queue_policy { max_queue_size: 4 } }"
REPOSITORY = {
    "plain": model(settings=config(CHUNKED)),
    "other": model(settings=config(CHUNKED)),
    "held": model(code(HOLD + "\ny = x"), settings=config(max_batch_size=1)),
    "short": model(code(HOLD + "\ny = x"), settings=config(POLICY, max_batch_size=1)),
    "both": ensemble("plain", "other"),
}
BODY = json_body({"X": np.ones((1, 1), np.float32)})
NEVER = 0.001  # requests in a second: none comes back while a test runs
THREE = {"quotas": [{"requests_per_s": NEVER, "burst": 3}]}
LIMITS = {
    **{f"three{number}": THREE for number in range(1, 7)},
    "many": {"quotas": [{"requests_per_s": NEVER, "burst": 100}]},
    "few": {"quotas": [{"models": ["held", "short"], "concurrent": 2}]},
    "bytes": {"quotas": [{"models": ["plain"], "bytes_per_s": 4 * NEVER}]},
    "parts": {"quotas": [{"requests_per_s": NEVER, "burst": 5}]},
    "flood": {},
    "bob": {},
}


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two front ends"])
def server(start_module_server, request):
    """A server of all tests here: each has principals of its own."""
    flags = [f"--frontend-processes={request.param if request.param > 1 else 0}"]
    environment = {QUOTAS: json.dumps(LIMITS)}
    return start_module_server(
        REPOSITORY, flags=flags, environment=environment, command=COMMAND
    ).await_ready()


def ask(server, principal: str, name: str = "plain") -> tuple[int, dict[str, str], bytes]:
    """Send a request on a connection of its own; the status, the headers, the body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
    connection.request("POST", f"/v2/models/{name}/infer", BODY, {HEADER: principal})
    answer = connection.getresponse()
    try:
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def tensors(kind):
    made = kind.InferInput("X", [1, 1], "FP32")
    made.set_data_from_numpy(np.ones((1, 1), np.float32))
    return [made]


def metric(server, name: str, **labels: str) -> float:
    """The sum of the lines of a family that have these labels."""
    text = call(server.metrics_port, "/metrics").body.decode()
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(w in line for w in wanted))


def test_http_clients_are_refused_beyond_their_quota(server):
    answers = [ask(server, "three1") for _ in range(5)]
    others = [ask(server, "nobody") for _ in range(5)]

    assert [status for status, _, _ in answers] == [200] * 3 + [429] * 2
    _, headers, body = answers[-1]
    assert 900 < int(headers["Retry-After"]) <= 1000
    message = json.loads(body)["error"]
    assert message.startswith("principal 'three1' may have 0.001 requests per second, 3 at once")
    assert [status for status, _, _ in others] == [200] * 5
    assert metric(server, "nv_principal_request_count", principal="three1") == 3
    assert metric(server, "nv_principal_refused_count", principal="three1") == 2
    assert metric(server, "nv_principal_request_count", principal="") >= 5
    assert metric(server, "nv_principal_running_request_count") == 0


def test_triton_clients_get_the_refusal_of_their_protocol(server):
    for _ in range(3):
        ask(server, "three3")
    headers = {HEADER: "three3"}
    with (
        triton_http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as over_http,
        triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as over_grpc,
    ):
        with pytest.raises(InferenceServerException, match="principal 'three3'") as of_http:
            over_http.infer("plain", tensors(triton_http), headers=dict(headers))
        with pytest.raises(InferenceServerException, match="principal 'three3'") as of_grpc:
            over_grpc.infer("plain", tensors(triton_grpc), headers=dict(headers))

    assert of_http.value.status() == "429"
    assert of_grpc.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


def test_streamed_requests_are_charged_to_the_principal_of_their_call(server):
    heard: list = []
    is_over = threading.Event()

    def on_answer(result, error) -> None:
        heard.append(error)
        if len(heard) == 5:
            is_over.set()

    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(on_answer, headers={HEADER: "three6"})
        for _ in range(5):
            client.async_stream_infer("plain", tensors(triton_grpc))
        assert is_over.wait(DEADLINE_S)
        client.stop_stream()

    assert [error is None for error in heard] == [True] * 3 + [False] * 2
    assert "principal 'three6'" in str(heard[-1])


def test_many_connections_share_one_quota_in_columns(server):
    """Both protocols and all connections, of any front end, have the same bucket."""

    def send_http(_: int) -> list[int]:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
        statuses = []
        for _ in range(40):
            connection.request("POST", "/v2/models/plain/infer", BODY, {HEADER: "many"})
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
        connection.close()
        return statuses

    def send_grpc(_: int) -> list[int]:
        statuses = []
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            for _ in range(40):
                try:
                    client.infer("plain", tensors(triton_grpc), headers={HEADER: "many"})
                    statuses.append(200)
                except InferenceServerException as error:  # noqa: PERF203  each may be refused
                    is_refusal = error.status() == "StatusCode.RESOURCE_EXHAUSTED"
                    statuses.append(429 if is_refusal else 500)
        return statuses

    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(send, 0) for send in (send_http, send_grpc) for _ in range(4)]
        counts = Counter(status for each in made for status in each.result())

    assert counts == {200: 100, 429: 220}
    assert metric(server, "nv_inference_path_count", path="columns") > 0
    assert metric(server, "nv_principal_running_request_count") == 0


def test_steps_of_an_ensemble_are_not_charged_again(server):
    statuses = [ask(server, "parts", "both")[0] for _ in range(6)]

    assert statuses == [200] * 5 + [429]
    assert metric(server, "nv_principal_request_count", principal="parts") == 5
    assert metric(server, "nv_principal_queue_duration_us", principal="parts", model="other") > 0


def hold(server, name: str):
    """Let a model keep what it gets."""
    path = server.repository / name / "1" / "hold"
    path.touch()
    return path


def running(server, principal: str) -> float:
    return metric(server, "nv_principal_running_request_count", principal=principal)


def test_requests_under_way_come_back_when_clients_leave_and_workers_die(server):
    held = hold(server, "held")
    sockets = []
    for _ in range(2):
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
        connection.request("POST", "/v2/models/held/infer", BODY, {HEADER: "few"})
        sockets.append(connection)
    assert eventually(lambda: running(server, "few") == 2)
    refused = ask(server, "few", "held")
    sockets[1].close()  # it waits, or runs: then its end comes with the worker's
    for worker in server.workers():
        if "held" in " ".join(worker.cmdline()):
            worker.kill()
    held.unlink()
    came_back = eventually(lambda: running(server, "few") == 0)
    sockets[0].close()

    assert refused[0] == 429
    assert "2 requests under way" in json.loads(refused[2])["error"]
    assert came_back
    assert eventually(lambda: ask(server, "few", "held")[0] == 200)


def test_server_that_stops_leaves_nothing(server):
    ask(server, "bob")
    hold(server, "held")
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
    connection.request("POST", "/v2/models/held/infer", BODY, {HEADER: "few"})
    assert eventually(lambda: running(server, "few") == 1)
    (server.repository / "held" / "1" / "hold").unlink()

    assert server.end() == 0
    assert eventually(lambda: not server.descendants())
    connection.close()


# A real policy

POLICY = """
[principals.{name}]
apis = ["inference"]
[[principals.{name}.quotas]]
requests_per_s = 0.001
burst = {burst}

[principals.admin]
apis = ["*"]
"""
