# SPDX-License-Identifier: Apache-2.0
"""Flaws of other servers in what they keep and free: cancelled calls, lost peers, old memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import signal
import socket
import struct
import sys
import uuid

import grpc
import numpy as np
import pytest

from tests.e2e.http_client import HEADER_LENGTH, infer
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.native_backend import building
from tests.repository_e2e.model_files import config
from tests.security.hostile import (
    COUNT,
    MIB,
    Peak,
    X,
    grpc_request,
    head,
    pending_count,
    processes,
    raw_answer,
    status_of,
)

SHARED = pathlib.Path("/dev/shm")
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST


# Cancelled calls


_sequence_ids = itertools.count(1)


def request_for(name, *, is_last=True):
    """A request of a model; where it takes sequences, it is one."""
    if name != "turns":
        return grpc_request(name)
    ends = {"sequence_start": True, "sequence_end": is_last}
    return grpc_request(name, sequence_id=next(_sequence_ids), **ends)


def cancel_unary(stub, name):
    stub.ModelInfer.future(request_for(name)).cancel()


def cancel_stream_before_it_is_read(stub, name):
    calls = stub.ModelStreamInfer(iter([request_for(name) for _ in range(5)]))
    calls.cancel()


def cancel_stream_after_the_first_response(stub, name):
    calls = stub.ModelStreamInfer(iter([request_for(name) for _ in range(5)]))
    with contextlib.suppress(grpc.RpcError):
        next(calls)
    calls.cancel()


CANCELS = [cancel_unary, cancel_stream_before_it_is_read, cancel_stream_after_the_first_response]


@pytest.mark.parametrize("cancel", CANCELS)
@pytest.mark.parametrize("name", ["echo", "count", "turns"])
def test_cve_2025_23322_calls_may_be_cancelled_at_any_time(server, grpc_stub, cancel, name):
    for _ in range(COUNT // 4):
        cancel(grpc_stub, name)

    assert eventually(lambda: pending_count(server, name) == 0)
    answer = grpc_stub.ModelInfer(grpc_request("echo"), timeout=DEADLINE_S)
    assert answer.raw_output_contents == [bytes(8)]


def test_cve_2025_23322_calls_are_cancelled_while_they_wait_and_while_they_run(server, grpc_stub):
    entered = server.repository / "held" / "1" / "entered"
    entered.unlink(missing_ok=True)
    server.hold("held")
    try:
        calls = [grpc_stub.ModelInfer.future(grpc_request("held")) for _ in range(COUNT // 4)]
        assert eventually(entered.exists)  # one runs, perhaps with others, and the rest wait
        for call in calls:
            call.cancel()
        is_empty = eventually(lambda: pending_count(server, "held") == 0)
    finally:
        server.let_go("held")

    assert is_empty
    assert server.infer("held", 4.0) == [4.0]


def test_cve_2025_23322_sequences_are_cancelled_while_they_wait_for_a_place(server, grpc_stub):
    first = request_for("turns", is_last=False)
    grpc_stub.ModelInfer(first)  # takes the only place of the model
    calls = [grpc_stub.ModelInfer.future(request_for("turns")) for _ in range(COUNT // 4)]
    is_waiting = eventually(lambda: pending_count(server, "turns") == len(calls))
    for call in calls:
        call.cancel()
    is_empty = eventually(lambda: pending_count(server, "turns") == 0)
    last = grpc_request("turns", sequence_id=first.parameters["sequence_id"].int64_param)
    last.parameters["sequence_end"].bool_param = True
    grpc_stub.ModelInfer(last)

    assert is_waiting
    assert is_empty
    assert grpc_stub.ModelInfer(request_for("turns"), timeout=DEADLINE_S).model_name == "turns"


@pytest.mark.parametrize("name", ["echo", "count"])
def test_cve_2025_23322_http_clients_leave_at_any_time(server, name):
    body = b'{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","data":[1,2]}]}'
    request = head(f"/v2/models/{name}/infer", f"Content-Length: {len(body)}") + body
    for number in range(COUNT):
        with socket.create_connection(("127.0.0.1", server.http_port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.sendall(request[: len(request) - number % 4 * 20])

    assert eventually(lambda: pending_count(server, name) == 0)


def test_server_fix_c1b7cb73c_streams_that_are_given_up_leave_nothing(server, grpc_stub):
    """Also 25baa7b33 and 47f9e03: use after free, which shows as growth where memory is managed."""

    def use_and_leave():
        for cancel in CANCELS:
            cancel(grpc_stub, "count")
        bad = grpc_request("count", outputs=["missing"])
        list(grpc_stub.ModelStreamInfer(iter([bad, grpc_request("count")])))

    for _ in range(20):  # what is made once
        use_and_leave()
    peak = Peak(server)
    descriptors = server.descriptor_count()
    for _ in range(COUNT // 4):
        use_and_leave()

    assert peak.growth_bytes() < 16 * MIB
    assert eventually(lambda: server.descriptor_count() <= descriptors + 2)


# Peers that are gone


def test_server_fix_e24fd86da_peers_that_are_gone_send_no_signal_that_kills(server):
    request = b'{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","data":[1,2]}]}'
    text = head("/v2/models/wide/infer", f"Content-Length: {len(request)}") + request
    for number in range(COUNT // 10):
        client = socket.create_connection(("127.0.0.1", server.http_port), timeout=DEADLINE_S)
        client.sendall(text)
        if number % 3 == 0:  # it reads no more, while megabytes are written to it
            client.recv(1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        elif number % 3 == 1:
            client.shutdown(socket.SHUT_RD)
        client.close()
    alive = processes(server)
    for pid in alive:
        os.kill(pid, signal.SIGPIPE)

    assert server.infer("wide", 1.0)[:2] == [1.0, 1.0]
    assert processes(server) >= alive


# Memory that was used before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/shm")
def test_cve_2024_0103_output_writes_only_its_own_bytes_of_a_region(server):
    file = SHARED / f"pytriton-test-{uuid.uuid4().hex}"
    file.write_bytes(b"\xaa" * 4096)
    register = {"key": f"/{file.name}", "byte_size": 4096}
    place = {"shared_memory_region": "mine", "shared_memory_byte_size": 4096}
    try:
        server.post("/v2/systemsharedmemory/region/mine/register", register)
        document = {"inputs": [X], "outputs": [{"name": "Y", "parameters": place}]}
        answer = server.post("/v2/models/echo/infer", document)
        content = file.read_bytes()
    finally:
        server.post("/v2/systemsharedmemory/region/mine/unregister")
        file.unlink()

    assert answer.status == 200
    assert content == np.array([1, 2], np.float32).tobytes() + b"\xaa" * 4088


def test_cve_2024_0103_body_that_ends_early_is_executed_by_no_model(server):
    secret = np.full((1, MIB), 7.0, np.float32)
    server.infer("echo", *secret[0])  # its memory is used again
    text = (
        b'{"inputs":[{"name":"X","shape":[1,1048576],"datatype":"FP32",'
        b'"parameters":{"binary_data_size":4194304}}]}'
    )
    before = server.get("/v2/models/echo/stats").json["model_stats"][0]["inference_count"]
    lines = (
        f"Content-Length: {len(text) + 4 * MIB}",
        f"Inference-Header-Content-Length: {len(text)}",
    )
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=DEADLINE_S) as client:
        client.sendall(head("/v2/models/echo/infer", *lines) + text + bytes(MIB))
        client.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: client.recv(65536), b""))
    after = server.get("/v2/models/echo/stats").json["model_stats"][0]["inference_count"]

    assert status_of(received) in {0, 400}
    assert after == before


@pytest.fixture(scope="module")
def partial(start_module_server):
    """A server with a compiled backend that does not always write its output."""
    if reason := building.missing():
        pytest.skip(reason)
    files = {"config.pbtxt": config().replace('"python"', '"partial"'), "1/.keep": ""}
    flags = (f"--backend-directory={building.backend_directory()}",)
    return start_module_server({"partial": files}, flags).await_ready()


@pytest.mark.parametrize("size", [16, 4096, 100_000, 4 * MIB])
@pytest.mark.parametrize("rows", [1, 2])
def test_cve_2024_0103_output_that_a_backend_does_not_write_is_zero(partial, size, rows):
    secret = np.full((rows, size // 4), 7.0, np.float32)
    for _ in range(3):  # so that its memory is used again
        answer = infer(partial.http_port, "partial", {"X": secret})["Y"]
        after = infer(partial.http_port, "partial", {"X": np.zeros_like(secret)})["Y"]

        assert np.array_equal(answer, secret)
        assert not after.any()


def test_cve_2024_0103_short_bodies_have_no_bytes_of_others(server):
    for size in (MIB, 4 * MIB):
        server.infer("echo", *np.full(size // 4, 7.0, np.float32))
    text = (
        b'{"inputs":[{"name":"X","shape":[1,1024],"datatype":"FP32",'
        b'"parameters":{"binary_data_size":%d}}]}'
    )
    for size in (0, 1, 4095, 4097):
        head_text = text % size
        lines = (
            f"Content-Length: {len(head_text) + min(size, 4096)}",
            f"{HEADER_LENGTH}: {len(head_text)}",
        )
        request = head("/v2/models/echo/infer", *lines) + head_text + bytes(min(size, 4096))
        assert status_of(raw_answer(server.http_port, request)) == 400
