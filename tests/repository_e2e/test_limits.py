# SPDX-License-Identifier: Apache-2.0
"""Limits that hold: memory of request bodies, connections by address, bodies by route."""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import struct

import numpy as np
import psutil
import pytest

from tests.e2e.http_client import HEADER_LENGTH, Answer, binary_body, call
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import HELD, HOLD, code, model

MIB = 1 << 20
BUDGET = 48 * MIB
UPLOAD = 8 * MIB
MODELS = {"plus": model(code("y = x + 1")), "held": model(code(f"{HOLD}\ny = x"), **HELD)}
FRONT_ENDS = pytest.mark.parametrize("front_ends", ["0", "2"], ids=["one process", "front ends"])


@pytest.fixture
def start(start_server, front_ends):
    def start(*flags: str):
        environment = {"PYTRITON_FRONTEND_PROCESSES": front_ends}
        return start_server(MODELS, flags=flags, environment=environment).await_ready()

    return start


def metric(server, name: str, limit: str) -> int | None:
    page = call(server.metrics_port, "/metrics").body.decode()
    found = re.search(rf'^{name}{{limit="{limit}"}} (\d+)$', page, re.MULTILINE)
    return None if found is None else int(found[1])


def resident_bytes(server) -> int:
    """The memory of the server without its models, of pages that are shared a part."""
    total = 0
    for each in (psutil.Process(server.pid), *server.descendants()):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += each.memory_full_info().pss
    return total


class Upload:
    """A client that sends most of a large body, and then waits."""

    def __init__(self, port: int, name: str = "plus") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.settimeout(DEADLINE_S)
        count = UPLOAD // 4
        json = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,%d],' % count
        json += b'"parameters":{"binary_data_size":%d}}]}' % UPLOAD
        head = (
            b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
            b"%b: %d\r\n\r\n"
        ) % (name.encode(), len(json) + UPLOAD, HEADER_LENGTH.encode(), len(json))
        self.left = UPLOAD
        with contextlib.suppress(OSError):  # it was refused already
            self._socket.sendall(head + json)

    def send(self, size: int) -> None:
        """Send zeros; a server that has refused the request takes them, or ends the connection."""
        self.left -= size
        with contextlib.suppress(OSError):
            self._socket.sendall(bytes(size))

    def answer(self) -> Answer:
        data = b""
        while b"\r\n\r\n" not in data:
            part = self._socket.recv(65536)
            assert part, data
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        while len(body) < int(headers["content-length"]):
            body += self._socket.recv(MIB)
        return Answer(int(lines[0].split()[1]), headers, body)

    @property
    def is_answered(self) -> bool:
        self._socket.setblocking(False)
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._socket.settimeout(DEADLINE_S)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def begin_upload():
    """What makes uploads, which end with the test, also with one that fails."""
    with contextlib.ExitStack() as stack:
        yield lambda *where: stack.enter_context(contextlib.closing(Upload(*where)))


@FRONT_ENDS
def test_many_large_uploads_take_no_more_memory_than_the_budget(start, begin_upload):
    server = start(f"--max-request-memory={BUDGET}")
    before = resident_bytes(server)
    uploads = [begin_upload(server.http_port) for _ in range(20)]
    for _ in range(7):
        for upload in uploads:
            upload.send(MIB)

    def used() -> int:
        return metric(server, "nv_limit_used", "request_memory")

    def is_settled() -> bool:
        """Whether all that was sent is received, so that nobody else is refused."""
        waiting = [upload for upload in uploads if not upload.is_answered]
        return len(waiting) < len(uploads) and used() >= len(waiting) * 7 * MIB

    assert eventually(is_settled)
    refused = [upload for upload in uploads if upload.is_answered]
    answers = [upload.answer() for upload in refused]
    assert {answer.status for answer in answers} == {503}
    assert {answer.headers["retry-after"] for answer in answers} == {"1"}
    assert re.match(
        r"no memory for this request now: request bodies use \d+ of at most \d+ bytes "
        r"\(see --max-request-memory\), try again later",
        answers[0].error,
    )
    assert used() <= BUDGET
    assert metric(server, "nv_limit_max", "request_memory") == BUDGET
    assert resident_bytes(server) - before < BUDGET + 32 * MIB  # of 140 MiB that were sent
    # Others are served meanwhile.
    assert server.infer("plus", 1.0) == [2.0]
    assert eventually(
        lambda: metric(server, "nv_limit_refusals_total", "request_memory") >= len(refused)
    )
    # So are those that go on.
    waiting = [upload for upload in uploads if upload not in refused]
    waiting[0].send(waiting[0].left)
    assert waiting[0].answer().status == 200
    for upload in uploads:
        upload.close()
    assert eventually(lambda: used() == 0)
    body, headers = binary_body({"X": np.zeros((1, UPLOAD // 4), np.float32)})
    assert call(server.http_port, "/v2/models/plus/infer", body, headers).status == 200


@FRONT_ENDS
def test_large_body_is_refused_where_none_is_expected(start):
    server = start("--model-control-mode=explicit", "--load-model=*")
    body = bytes(65537)
    for path in ("/v2/repository/index", "/v2/repository/models/plus/unload", "/v2/logging"):
        answer = call(server.http_port, path, body)

        assert answer.status == 400
        assert answer.error == "expected a body of at most 65536 bytes for this request, got more"
    assert call(server.http_port, "/no/such/path", body).status == 404
    assert call(server.metrics_port, "/metrics", body).status == 400
    refusals = (server, "nv_limit_refusals_total", "http_body_bytes")
    assert eventually(lambda: metric(*refusals) == 4)


# Connections


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
    client.settimeout(DEADLINE_S)
    return client


def ask(client: socket.socket) -> bytes:
    """What a client gets for a request; empty if it is disconnected before."""
    try:
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return client.recv(65536)
    except OSError:
        return b""


def is_served(port: int, clients: list[socket.socket]) -> bool:
    """Whether another client is served; it is added to these clients."""
    client = connect(port)
    if ask(client).startswith(b"HTTP/1.1 200"):
        clients.append(client)
        return True
    client.close()
    return False


@FRONT_ENDS
def test_address_has_no_more_connections_than_allowed(start):
    server = start("--max-connections-per-address=3")
    port = server.http_port
    # The connections that asked whether the server is ready have left.
    clients: list[socket.socket] = []

    with contextlib.ExitStack() as stack:
        for _ in range(3):
            assert eventually(lambda: is_served(port, clients))
        refused = stack.enter_context(connect(port))
        answer = ask(refused)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 1\r\n" in answer
        assert b"expected at most 3 connections from one address, got more" in answer
        assert refused.recv(1) == b""

        # Another address, and another port.
        other = stack.enter_context(connect(port, "127.0.0.2"))
        assert ask(other).startswith(b"HTTP/1.1 200")
        assert metric(server, "nv_limit_used", "connections_per_address") == 3
        assert metric(server, "nv_limit_max", "connections_per_address") == 3
        assert metric(server, "nv_limit_refusals_total", "connections_per_address") >= 1

        clients.pop().close()
        assert eventually(lambda: is_served(port, clients))
        for client in clients:
            client.close()


@FRONT_ENDS
def test_grpc_client_of_an_address_with_too_many_connections_is_told_why(start):
    server = start("--max-connections-per-address=1")
    with server.grpc_client() as client:
        assert client.is_server_live()
        with connect(server.grpc_port) as refused:
            received = b""
            while part := refused.recv(65536):
                received += part

        settings, goaway = received[:9], received[9:]
        assert settings[3] == 4
        _, kind, _, _, last_stream, code = struct.unpack(">3sBBIII", goaway[:17])
        assert (kind, last_stream, code) == (7, 0, 11)  # ENHANCE_YOUR_CALM
        assert goaway[17:] == b"expected at most 1 connections from one address, got more"
        assert client.is_server_live()


def test_clients_of_a_killed_front_end_do_not_count(start_server):
    environment = {"PYTRITON_FRONTEND_PROCESSES": "2"}
    flags = ["--max-connections-per-address=2"]
    server = start_server(MODELS, flags=flags, environment=environment).await_ready()
    for _ in range(3):
        clients: list[socket.socket] = []
        while len(clients) < 2:
            assert eventually(functools.partial(is_served, server.http_port, clients))
        killed = [each for each in server.descendants() if is_front_end(each)]
        for each in killed:
            each.kill()

        assert killed
        for client in clients:
            assert client.recv(1) == b""
            client.close()


def is_front_end(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # it was killed, and nobody has reaped it
        return bool(re.search(r"front end \d", " ".join(process.cmdline())))
    return False
