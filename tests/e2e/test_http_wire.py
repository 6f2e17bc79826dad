# SPDX-License-Identifier: Apache-2.0
"""HTTP as it is on the wire: bodies, headers, connections, and clients that do not behave."""

from __future__ import annotations

import json
import socket
import threading
import zlib

import numpy as np
import pytest

from pytriton.model_config import Tensor
from tests.e2e import http_client
from tests.e2e.http_client import HEADER_LENGTH, binary_body, call, json_body, outputs_of
from tests.e2e.waiting import DEADLINE_S

pytestmark = pytest.mark.both_front_end_modes

ONE = np.ones((1, 1), np.float32)


def raw(port: int, *pieces: bytes) -> bytes:
    """Send pieces one by one on a connection; everything that comes back until it is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            client.sendall(piece)
        return b"".join(iter(lambda: client.recv(1 << 20), b""))


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


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_request_may_come_in_pieces(host, model, size):
    request = post(model, json_body({"x": np.ones((1, 50), np.float32)}), "Connection: close")
    pieces = [request[at : at + size] for at in range(0, len(request), size)]

    assert raw(host.port, *pieces).startswith(b"HTTP/1.1 200 OK\r\n")


def test_large_body_may_come_in_pieces(host, model):
    array = np.arange(500_000, dtype=np.float32)[None]
    body, headers = binary_body({"x": array})
    lines = [f"{name}: {value}" for name, value in headers.items()]
    request = post(model, body, *lines, "Connection: close")
    pieces = [request[at : at + 77_777] for at in range(0, len(request), 77_777)]

    assert raw(host.port, *pieces).endswith(array.tobytes())


def test_chunked_body_is_read(host, model):
    body = json_body({"x": ONE})
    chunks = b"".join(b"%x\r\n%b\r\n" % (1, body[at : at + 1]) for at in range(len(body)))
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        "Connection: close\r\n\r\n"
    ).encode()

    assert raw(host.port, head + chunks + b"0\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")


def test_pipelined_requests_are_answered_in_order(host, model):
    requests = [post(model, json_body({"x": ONE * n}, id=str(n))) for n in range(40)]
    last = post(model, json_body({"x": ONE}, id="last"), "Connection: close")

    answers = raw(host.port, b"".join(requests) + last).split(b"HTTP/1.1 ")[1:]

    ids = [json.loads(answer.partition(b"\r\n\r\n")[2])["id"] for answer in answers]
    assert ids == [str(n) for n in range(40)] + ["last"]


def test_old_protocol_version_closes_unless_asked_not_to(host, model):
    body = json_body({"x": ONE})
    request = post(model, body).replace(b"HTTP/1.1", b"HTTP/1.0")

    assert b" 200 OK\r\n" in raw(host.port, request)[:20]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"NONSENSE\r\n\r\n", b"GET /v2 HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01",
        b"GET /v2 HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v2 HTTP/1.1\r\nbad header line\r\n\r\n",
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_the_server_goes_on(host, request_bytes):
    answer = raw(host.port, request_bytes)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert host.get("/v2/health/live").status == 200


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_answer_is_compressed_when_asked(host, model, algorithm):
    body = json_body({"x": np.zeros((1, 500), np.float32)})

    answer = call(host.port, f"/v2/models/{model}/infer", body, {"Accept-Encoding": algorithm})

    assert answer.headers["content-encoding"] == algorithm
    text = zlib.decompress(answer.body, 47)
    assert json.loads(text)["outputs"][0]["data"] == [0] * 500


def test_unknown_encoding_is_refused_with_the_known_ones(host, model):
    answer = call(
        host.port, f"/v2/models/{model}/infer", json_body({"x": ONE}), {"Content-Encoding": "br"}
    )

    assert (answer.status, answer.error) == (501, "Unsupported compression type")
    assert answer.headers["accept-encoding"] == "gzip, deflate"


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


def test_reserved_header_is_not_forwarded(run_triton):
    triton = run_triton(http_header_forward_pattern=".*")
    tensor = {"dtype": np.float32, "shape": (-1,)}
    triton.bind("Model", lambda requests: requests, [Tensor(name="x", **tensor)],
                [Tensor(name="y", **tensor)])  # fmt: skip

    with pytest.raises(http_client.InferFailedError) as failure:
        http_client.infer(triton._config.http_port, "Model", {"x": ONE}, headers={"priority": "1"})

    assert failure.value.status == 400
    assert failure.value.text == (
        "Header 'priority' is reserved for Triton usage and cannot be forwarded."
    )


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


def test_client_that_leaves_early_harms_nobody(host):
    entered, released = threading.Event(), threading.Event()

    def wait(requests):
        entered.set()
        released.wait(DEADLINE_S)
        return [{"y": request["x"]} for request in requests]

    model = host.bind(wait)
    with socket.create_connection(("127.0.0.1", host.port), timeout=DEADLINE_S) as client:
        client.sendall(post(model, json_body({"x": np.ones((1, 100_000), np.float32)})))
        assert entered.wait(DEADLINE_S)
    with socket.create_connection(("127.0.0.1", host.port), timeout=DEADLINE_S) as client:
        client.sendall(post(model, b"x" * 1000)[:500])
    released.set()

    assert http_client.infer(host.port, model, {"x": ONE})["y"] == 1


def test_unbatched_model_config_says_so(host):
    model = host.bind(lambda requests: requests, batching=False)
    config = host.get(f"/v2/models/{model}/config").json

    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
