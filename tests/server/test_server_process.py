# SPDX-License-Identifier: Apache-2.0
"""Starting and ending a real server process: what goes wrong at its start is said clearly.

All of it is the same for one that is forked from a template.
"""

from __future__ import annotations

import subprocess
import threading

import psutil
import pytest

from pytriton.binding.server_process import ServerProcess
from pytriton.binding.template import ForkedProcess, can_fork
from pytriton.exceptions import PyTritonRuntimeError, PyTritonValidationError
from pytriton.testing import forked_servers

pytestmark = pytest.mark.e2e

QUIET = {"http_port": 0, "allow_grpc": False, "allow_metrics": False}
START_TIMEOUT_S = 180.0


@pytest.fixture(
    autouse=True,
    params=[
        "started",
        pytest.param("forked", marks=pytest.mark.skipif(not can_fork(), reason="not safe here")),
    ],
)
def kind(request, monkeypatch):
    if request.param == "started":
        monkeypatch.setenv("PYTRITON_TEST_SERVER_START", "spawn")
    with forked_servers():
        yield ForkedProcess if request.param == "forked" else subprocess.Popen


@pytest.fixture
def server():
    ended = threading.Event()
    process = ServerProcess(lambda _: ended.set())
    process.ended = ended
    yield process
    if process._process is not None:
        process.kill()
        assert ended.wait(START_TIMEOUT_S)


def test_server_starts_and_ends_in_order(server, kind):
    assert server.start(QUIET, START_TIMEOUT_S).http_port > 0
    assert server.is_alive()
    assert isinstance(server._process, kind)

    server.stop(START_TIMEOUT_S)

    assert server.ended.wait(START_TIMEOUT_S)
    assert not server.is_alive()
    assert not psutil.pid_exists(server.pid)


@pytest.mark.parametrize(
    "settings, kind, text",
    [
        ({"log_file": "/nowhere/at/all.log"}, PyTritonRuntimeError, "cannot start.*/nowhere"),
        ({"http_port": -5}, PyTritonValidationError, "from 0 to 65535 for --http-port, got -5"),
        ({"http_address": "192.0.2.1"}, PyTritonRuntimeError, "192.0.2.1"),
    ],
)
def test_wrong_setting_is_named_and_the_process_ends(server, settings, kind, text):
    with pytest.raises(kind, match=text):
        server.start({**QUIET, **settings}, START_TIMEOUT_S)

    assert server.ended.wait(START_TIMEOUT_S)
    assert not psutil.pid_exists(server.pid)


def test_start_that_takes_too_long_leaves_no_process(server):
    with pytest.raises(TimeoutError, match="did not"):
        server.start(QUIET, 0.0)

    assert server.ended.wait(START_TIMEOUT_S)
    assert not psutil.pid_exists(server.pid)


def test_caller_works_while_the_server_starts(server):
    lives = []
    server.start(QUIET, START_TIMEOUT_S, meanwhile=lambda: lives.append(server.pid))

    assert lives == [server.pid]
    assert server.is_alive()


def test_interrupt_of_the_callers_work_leaves_no_process():
    def interrupt():
        raise KeyboardInterrupt

    server = ServerProcess(lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        server.start(QUIET, START_TIMEOUT_S, meanwhile=interrupt)

    assert not psutil.pid_exists(server.pid)
