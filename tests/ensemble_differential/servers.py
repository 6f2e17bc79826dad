# SPDX-License-Identifier: Apache-2.0
"""Both servers, started alike: the same repository with all ensembles, the same options."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests import peers
from tests.e2e.waiting import eventually
from tests.ensemble_differential.ensembles import ENSEMBLES, write_repository
from tests.ensemble_differential.refused_ensembles import write_refused
from tests.free_ports import free_ports
from tests.python_backend_differential import clients
from tests.python_backend_differential.servers import Server, options

START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 60.0


@contextlib.contextmanager
def running(command: list[str], *, is_real: bool) -> Iterator[Server]:
    """A server that has loaded the ensembles, and with them the models of their steps."""
    http, grpc, metrics = free_ports(3)
    with tempfile.TemporaryDirectory() as name:
        models, log = Path(name, "models"), Path(name, "log")
        write_repository(models)
        write_refused(models)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *options(models, http, grpc, metrics)],
                stdout=output,
                stderr=output,
                cwd=name,
            )
        server = Server(http, grpc, metrics, models, log, is_real, process.kill)
        try:
            load_models(server, process)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(timeout=STOP_DEADLINE_S)
            finally:
                process.kill()


def load_models(server: Server, process: subprocess.Popen[bytes]) -> None:
    """Wait for the server, then load what most cases need."""

    def is_live() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"ended with {process.returncode}: {server.log.read_text()}")
        with contextlib.suppress(OSError):
            return bool(client.is_server_ready())
        return False

    with clients.open_http(server) as client:
        if not eventually(is_live, START_DEADLINE_S):
            raise TimeoutError(f"not ready after {START_DEADLINE_S} s: {server.log.read_text()}")
        for name in (*ENSEMBLES, "asking"):
            client.load_model(name)


def our_server() -> contextlib.AbstractContextManager[Server]:
    """Our server."""
    return running([sys.executable, "-m", "pytriton.server"], is_real=False)


def real_server() -> contextlib.AbstractContextManager[Server]:
    """The real Triton, where the peers are installed."""
    return running(peers.triton_command(), is_real=True)
