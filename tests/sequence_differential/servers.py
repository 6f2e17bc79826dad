# SPDX-License-Identifier: Apache-2.0
"""Both servers, started alike with an empty repository, into which scenarios write models."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests import peers
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports

START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 60.0


@dataclasses.dataclass(frozen=True)
class Server:
    """Where a server listens, and where its models and its log are."""

    http: int
    grpc: int
    metrics: int
    repository: Path
    log: Path
    is_real: bool
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def running(command: list[str], *, is_real: bool) -> Iterator[Server]:
    """A server that is ready and has no models."""
    ports = free_ports(3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models").mkdir()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *_options(folder / "models", *ports)], stdout=log, stderr=log, cwd=folder
            )
        server = Server(*ports, folder / "models", folder / "log", is_real, process)
        try:
            if not eventually(lambda: _is_ready(server), START_DEADLINE_S):
                raise TimeoutError(f"not ready: {server.log.read_text()}")
            yield server
        finally:
            process.terminate()
            try:
                process.wait(timeout=STOP_DEADLINE_S)
            finally:
                process.kill()


def _options(repository: Path, http_port: int, grpc_port: int, metrics_port: int) -> list[str]:
    return [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        "--exit-timeout-secs=5",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
    ]


def _is_ready(server: Server) -> bool:
    if server.process.poll() is not None:
        raise RuntimeError(f"ended: {server.log.read_text()}")
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
    return False


def our_server() -> contextlib.AbstractContextManager[Server]:
    """Our server."""
    return running([sys.executable, "-m", "pytriton.server"], is_real=False)


def real_server() -> contextlib.AbstractContextManager[Server]:
    """The real Triton, where the peers are installed."""
    return running(peers.triton_command(), is_real=True)
