# SPDX-License-Identifier: Apache-2.0
"""Both servers, started alike: the same repository, options, environment and log."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests import peers
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports
from tests.python_backend_differential.variants import GOOD, write_repository

START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 60.0
WANTED = [
    "mirror",
    "renamed",
    "square",
    "returns",
    "senders",
    "coroutine",
    "batched",
    "iterative",
    "lifelog",
    "facts",
]


@dataclasses.dataclass(frozen=True)
class Server:
    """Where a server listens, and what it wrote."""

    http: int
    grpc: int
    metrics: int
    repository: Path
    log: Path
    is_real: bool
    kill: Callable[[], None]


@contextlib.contextmanager
def running(command: list[str], *, is_real: bool) -> Iterator[Server]:
    """A server that has loaded the compared models."""
    http, grpc, metrics = free_ports(3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_repository(folder / "models")
        (folder / "working_folder").mkdir()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *options(folder / "models", http, grpc, metrics)],
                stdout=log,
                stderr=log,
                cwd=folder / "working_folder",
                env={**os.environ, "PYTRITON_COMPARED": "inherited"},
            )
        server = Server(
            http, grpc, metrics, folder / "models", folder / "log", is_real, process.kill
        )
        try:
            load_models(server, process)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(timeout=STOP_DEADLINE_S)
            finally:
                process.kill()


def options(repository: Path, http: int, grpc: int, metrics: int) -> list[str]:
    """What both commands are given."""
    return [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        f"--metrics-port={metrics}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
    ]


def load_models(
    server: Server, process: subprocess.Popen[bytes], names: Iterable[str] = (*WANTED, *GOOD)
) -> None:
    """Wait for the server, then load what most cases need."""

    def is_ready() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"ended with {process.returncode}: {server.log.read_text()}")
        with contextlib.suppress(OSError, InferenceServerException):
            return bool(client.is_server_ready())
        return False

    client = http_client.InferenceServerClient(
        f"127.0.0.1:{server.http}", network_timeout=START_DEADLINE_S
    )
    with contextlib.closing(client):
        if not eventually(is_ready, START_DEADLINE_S):
            raise TimeoutError(f"not ready after {START_DEADLINE_S} s: {server.log.read_text()}")
        for name in names:
            client.load_model(name)


def our_server() -> contextlib.AbstractContextManager[Server]:
    """Our server."""
    return running([sys.executable, "-m", "pytriton.server"], is_real=False)


def real_server() -> contextlib.AbstractContextManager[Server]:
    """The real Triton, where the peers are installed."""
    return running(peers.triton_command(), is_real=True)
