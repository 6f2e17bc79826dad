# SPDX-License-Identifier: Apache-2.0
"""Both servers, started alike with the compiled backends and their models."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests import peers
from tests.free_ports import free_ports
from tests.native_backend.building import backend_directory
from tests.native_backend.models import WANTED, write_repository
from tests.python_backend_differential.servers import (
    STOP_DEADLINE_S,
    Server,
    load_models,
    options,
)

SETTINGS = ("--backend-config=facts,shade=dark", "--backend-config=facts,shade=light")


@contextlib.contextmanager
def running(
    command: list[str], *, is_real: bool, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server that has loaded the compared models."""
    http, grpc, metrics = free_ports(3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_repository(folder / "models")
        arguments = [
            *command,
            *options(folder / "models", http, grpc, metrics),
            *SETTINGS,
            f"--backend-directory={backend_directory()}",
        ]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                arguments,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={
                    **os.environ,
                    "XDG_DATA_HOME": str(folder / "data"),
                    "TRITON_SERVER_CPU_ONLY": "1",  # as the machine of the recordings
                    **(environment or {}),
                },
            )
        server = Server(
            http, grpc, metrics, folder / "models", folder / "log", is_real, process.kill
        )
        try:
            load_models(server, process, WANTED)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(timeout=STOP_DEADLINE_S)
            finally:
                process.kill()


def our_server(
    environment: Mapping[str, str] | None = None,
) -> contextlib.AbstractContextManager[Server]:
    """Our server."""
    command = [sys.executable, "-m", "pytriton.server"]
    return running(command, is_real=False, environment=environment)


def real_server() -> contextlib.AbstractContextManager[Server]:
    """The real Triton, where the peers are installed."""
    return running(peers.triton_command(), is_real=True)
