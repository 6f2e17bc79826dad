# SPDX-License-Identifier: Apache-2.0
"""How the command ends: what is in flight is answered, and nothing is left."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.http_client import InferFailedError, is_port_free
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import DECOUPLED, code, config, decoupled_code, model
from tests.repository_e2e.streams import open_stream

SLOW = model(code("print('busy'); time.sleep(2); y = x"))
HANGING = model(code("print('busy'); threading.Event().wait(); y = x"))
HANGING_FINALIZE = model(code(finalize="threading.Event().wait()"))
# A response, and after two seconds another one.
STREAMING = model(
    decoupled_code("send([x[0]]); time.sleep(2); send([x[0] + 1])"), config(DECOUPLED)
)


@pytest.fixture
def threads():
    with ThreadPoolExecutor() as pool:
        yield pool


def assert_gone(server):
    assert eventually(lambda: not server.descendants()), server.descendants()
    assert all(is_port_free(port) for port in server.ports)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_requests_in_flight_finish(start_server, threads, number):
    server = start_server({"slow": SLOW, "stream": STREAMING}).await_ready()
    answer = threads.submit(server.infer, "slow", 5.0)
    with open_stream(server) as stream:
        stream.send("stream", 1.0)
        assert eventually(lambda: stream.values and "busy" in server.stdout)

        server.signal(number)

        assert eventually(lambda: f"Signal ({number:d}) received." in server.stdout)
        stream.await_end()
    assert answer.result() == [5.0]
    assert (stream.values, stream.errors, stream.final_count) == ([1.0, 2.0], [], 1)
    assert server.exit_code() == 0
    assert "Waiting for in-flight requests to complete." in server.stdout
    assert_gone(server)


def test_second_signal_ends_everything_at_once(start_server, threads):
    server = start_server({"m": HANGING}).await_ready()
    answer = threads.submit(server.infer, "m")
    assert eventually(lambda: "busy" in server.stdout)
    server.signal()
    assert eventually(lambda: "Timeout 29: Found" in server.stdout)

    server.signal()

    assert server.exit_code() == 1
    assert isinstance(answer.exception(), Exception)
    assert_gone(server)


def test_exit_timeout_gives_up_what_is_not_finished(start_server, threads):
    server = start_server({"m": HANGING}, flags=["--exit-timeout-secs=1"]).await_ready()
    answer = threads.submit(server.infer, "m")
    assert eventually(lambda: "busy" in server.stdout)

    server.signal()

    assert server.exit_code() == 1
    assert "Exit timeout expired. Exiting immediately." in server.stderr
    assert isinstance(answer.exception(), InferFailedError)
    assert_gone(server)


def test_finalize_that_hangs_gets_the_exit_timeout(start_server):
    server = start_server({"m": HANGING_FINALIZE}, flags=["--exit-timeout-secs=1"]).await_ready()

    assert server.end() in {0, 1}
    assert_gone(server)


def test_signal_gives_loading_up(start_server):
    server = start_server({"m": model(code(initialize="threading.Event().wait()"))})
    assert eventually(server.workers)

    assert server.end() == 0
    assert_gone(server)


def test_finalize_runs_before_the_end(start_server, tmp_path):
    mark = tmp_path / "finalized"
    server = start_server({"m": model(code(finalize=f"open({str(mark)!r}, 'w').close()"))})
    server.await_ready()

    assert server.end() == 0
    assert mark.exists()
