# SPDX-License-Identifier: Apache-2.0
"""Both servers, started alike with the compared models."""

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
from tests.tensor_differential.models import ENSEMBLES, GOOD, write_repository

START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 60.0


@dataclasses.dataclass(frozen=True)
class Server:
    """Where a server listens."""

    http: int
    grpc: int


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[Server]:
    """A server that has loaded all good models."""
    http_port, grpc_port, metrics_port = free_ports(3)
    with tempfile.TemporaryDirectory() as name:
        write_repository(Path(name, "models"))
        with Path(name, "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *command,
                    f"--model-repository={name}/models",
                    "--model-control-mode=explicit",
                    *(f"--load-model={model}" for model in (*GOOD, *ENSEMBLES)),
                    f"--http-port={http_port}",
                    f"--grpc-port={grpc_port}",
                    f"--metrics-port={metrics_port}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            if not eventually(lambda: is_ready(http_port, process), START_DEADLINE_S):
                raise TimeoutError(Path(name, "log").read_text(errors="replace"))
            yield Server(http_port, grpc_port)
        finally:
            process.terminate()
            try:
                process.wait(timeout=STOP_DEADLINE_S)
            finally:
                process.kill()


def is_ready(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Returns whether the server is ready; raises an exception if it has ended."""
    if process.poll() is not None:
        raise RuntimeError(f"the server ended with {process.returncode}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_DEADLINE_S)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def our_server() -> contextlib.AbstractContextManager[Server]:
    return running([sys.executable, "-m", "pytriton.server"])


def real_server() -> contextlib.AbstractContextManager[Server]:
    """The real Triton, where the peers are installed."""
    return running(peers.triton_command())
