# SPDX-License-Identifier: Apache-2.0
"""Both servers, started alike as a setup says."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from tests import peers
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports
from tests.operations_differential.forked_commands import forked_commands
from tests.operations_differential.server import Server
from tests.operations_differential.surface import Setup

START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 60.0
PORT_DEADLINE_S = 10.0
_COMMON = (
    "--model-repository={models}",
    "--http-port={http}",
    "--grpc-port={grpc}",
    "--metrics-port={metrics}",
    "--http-address=127.0.0.1",
    "--grpc-address=127.0.0.1",
    "--metrics-address=127.0.0.1",
)


def command(*, is_real: bool) -> list[str]:
    """How the real or our server is called."""
    return peers.triton_command() if is_real else [sys.executable, "-m", "pytriton.server"]


@contextlib.contextmanager
def running(setup: Setup, *, is_real: bool) -> Iterator[Server]:
    """A server that is ready, or a place to start servers in if the setup says so."""
    names = ("http", "grpc", "metrics", *setup.ports)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    with tempfile.TemporaryDirectory() as name:
        models, log = Path(name, "models"), Path(name, "log")
        models.mkdir()
        setup.models(models)
        log.touch()
        server = Server(
            ports["http"],
            ports["grpc"],
            ports["metrics"],
            models,
            log,
            is_real,
            kill=lambda: None,
            ports=ports,
            command=command(is_real=is_real),
            pid=0,
        )
        if not setup.is_started:
            with nullcontext() if is_real else forked_commands(server.folder) as fork:
                yield dataclasses.replace(server, fork=fork)
            return
        with _started(server, setup) as process:
            yield dataclasses.replace(server, kill=process.kill, pid=process.pid)


def arguments(server: Server, setup: Setup) -> list[str]:
    """The options of a setup for this server; a later option replaces a common one."""
    own = (*setup.options, *(setup.real_options if server.is_real else setup.our_options))
    given = {option.partition("=")[0] for option in own}
    common = [option for option in _COMMON if option.partition("=")[0] not in given]
    return [server.filled(option) for option in (*common, *own)]


@contextlib.contextmanager
def _started(server: Server, setup: Setup) -> Iterator[subprocess.Popen[bytes]]:
    more = {name: server.filled(value) for name, value in setup.environment.items()}
    with server.log.open("wb") as output:
        process = subprocess.Popen(
            [*server.command, *arguments(server, setup)],
            stdout=output,
            stderr=output,
            cwd=server.folder,
            env={**os.environ, **more},
        )
    try:
        if not eventually(lambda: _is_ready(server, setup, process), START_DEADLINE_S):
            raise TimeoutError(server.log.read_text(errors="replace"))
        for name in setup.ports:  # the real one opens these after it says that it is ready
            eventually(lambda port=server.ports[name]: _is_open(port), PORT_DEADLINE_S)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=STOP_DEADLINE_S)
        finally:
            process.kill()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_ready(server: Server, setup: Setup, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        log = server.log.read_text(errors="replace")
        raise RuntimeError(f"the server ended with {process.returncode}: {log}")
    port, path = setup.ready
    connection = http.client.HTTPConnection(
        "127.0.0.1", server.ports[port], timeout=START_DEADLINE_S
    )
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
