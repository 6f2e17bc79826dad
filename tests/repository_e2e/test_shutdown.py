# SPDX-License-Identifier: Apache-2.0
"""How the command ends: what is in flight is answered, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.http_client import InferFailedError, is_port_free
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import (
    DECOUPLED,
    HELD,
    HOLD,
    code,
    config,
    decoupled_code,
    model,
)
from tests.repository_e2e.streams import open_stream

SLOW = model(code(f"print('busy')\n{HOLD}\ny = x"), **HELD)
HANGING = model(code("print('busy'); threading.Event().wait(); y = x"))
HANGING_FINALIZE = model(code(finalize="threading.Event().wait()"))


# A response, and another one when it is let go.
STREAMING = model(
    decoupled_code(f"send([x[0]])\n{HOLD}\nsend([x[0] + 1])"), config(DECOUPLED), **HELD
)
WAITING = "Waiting for in-flight requests to complete."

ONE_SECOND = ["--exit-timeout-secs=1"]
SERVERS = {
    "SIGTERM": ({"slow": SLOW, "stream": STREAMING}, []),
    "SIGINT": ({"slow": SLOW, "stream": STREAMING}, []),
    "idle": ({"m": model()}, []),
    "timeout": ({"m": HANGING}, ONE_SECOND),
    "finalize": ({"m": HANGING_FINALIZE}, ONE_SECOND),
}


@pytest.fixture(scope="module")
def servers(start_module_server):
    """A server for each test, all of them started at once."""
    return {
        name: start_module_server(*models, flags=flags)
        for name, (*models, flags) in SERVERS.items()
    }


@pytest.fixture
def threads():
    with ThreadPoolExecutor() as pool:
        yield pool


def assert_gone(server):
    assert eventually(lambda: not server.descendants()), server.descendants()
    # Tests of another run may have taken one for a moment.
    assert eventually(lambda: all(is_port_free(port) for port in server.ports))


# A terminal sends its signal to all processes of the group.
@pytest.mark.parametrize(
    "number, send", [(signal.SIGTERM, os.kill), (signal.SIGINT, os.killpg)], ids=["TERM", "INT"]
)
def test_signal_lets_requests_in_flight_finish(servers, threads, number, send):
    server = servers[number.name].await_ready()
    answer = threads.submit(server.infer, "slow", 5.0)
    with open_stream(server) as stream:
        stream.send("stream", 1.0)
        assert eventually(lambda: stream.values and "busy" in server.stdout)

        send(server.pid, number)

        assert eventually(lambda: WAITING in server.stdout)
        server.let_go("slow")
        server.let_go("stream")
        stream.await_end()
    assert answer.result() == [5.0]
    assert (stream.values, stream.final_count) == ([1.0, 2.0], 1)
    # The server may end before the client closes the stream, which then has nothing open.
    assert set(stream.errors) <= {"Server exiting"}
    assert server.exit_code() == 0
    assert f"Signal ({number:d}) received." in server.stdout
    assert_gone(server)


def test_idle_connections_do_not_delay_the_end(servers):
    server = servers["idle"].await_ready()
    with contextlib.ExitStack() as stack:
        silent, kept = (
            stack.enter_context(
                socket.create_connection(("127.0.0.1", server.http_port), DEADLINE_S)
            )
            for _ in range(2)
        )
        kept.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")
        client = stack.enter_context(server.grpc_client())
        assert client.is_server_live()

        assert server.end() == 0

        assert (silent.recv(1), kept.recv(1)) == (b"", b"")
    assert "Timeout 10:" not in server.stdout  # of 30 s; a busy machine needs some of them


def test_exit_timeout_gives_up_what_is_not_finished(servers, threads):
    server = servers["timeout"].await_ready()
    answer = threads.submit(server.infer, "m")
    assert eventually(lambda: "busy" in server.stdout)

    server.signal()

    assert server.exit_code() == 1
    assert "Exit timeout expired. Exiting immediately." in server.stderr
    assert isinstance(answer.exception(), InferFailedError)
    assert_gone(server)


def test_finalize_that_hangs_gets_the_exit_timeout(servers):
    server = servers["finalize"].await_ready()

    server.signal()
    server.exit_code()

    assert "m_0_0 did not finalize within 1 s and is killed" in server.stderr
    assert_gone(server)
