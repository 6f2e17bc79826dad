# SPDX-License-Identifier: Apache-2.0
"""The real Triton and PyTriton, in the folder PEERS_DIR that `scripts/setup-peers` made."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks.servers import real_triton
from tests.e2e.waiting import eventually

# NVIDIA PyTriton ends where one of its instances waits for the script for more than a second, as
# now and then on a busy machine. It is started again then.
STARTS = 10
START_DEADLINE_S = 600.0
STOP_DEADLINE_S = 180.0


def missing() -> str:
    """Why the peers cannot be started; empty where they can."""
    folder = os.environ.get("PEERS_DIR", "")
    if not folder:
        return "PEERS_DIR does not name the folder of the peers; scripts/setup-peers installs them"
    return "" if python().exists() else f"no peers in PEERS_DIR, there is no {python()}"


def python() -> Path:
    """The interpreter that has NVIDIA PyTriton."""
    return Path(os.environ["PEERS_DIR"], "venv", "bin", "python")


def triton_command() -> list[str]:
    """The real Triton with its Python backend; its own options follow."""
    command, environment = real_triton(Path(os.environ["PEERS_DIR"]))
    return ["env", *(f"{name}={value}" for name, value in environment.items()), *command]


@contextlib.contextmanager
def serving(
    command: Sequence[str],
    port: int,
    last_model: str,
    headers: Mapping[str, str] | None = None,
    *,
    starts: int = STARTS,
    **options: Any,
) -> Iterator[None]:
    """A process that has said over HTTP that its last model is ready."""
    with tempfile.TemporaryFile() as log, contextlib.ExitStack() as exits:
        lives = (exits.enter_context(_process(command, log, options)) for _ in range(starts))
        if not any(_becomes_ready(life, port, last_model, headers or {}) for life in lives):
            log.seek(0)
            raise RuntimeError(f"not ready: {log.read().decode(errors='replace')}")
        yield


@contextlib.contextmanager
def _process(
    command: Sequence[str], log: IO[bytes], options: Mapping[str, Any]
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, cwd=tempfile.gettempdir(), **options
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_DEADLINE_S)
        finally:
            process.kill()


def _becomes_ready(
    process: subprocess.Popen[bytes], port: int, model: str, headers: Mapping[str, str]
) -> bool:
    """Whether the process gets that far; otherwise it has ended by itself."""

    def is_decided() -> bool:
        return process.poll() is not None or _is_ready(port, model, headers)

    if not eventually(is_decided, START_DEADLINE_S):
        raise TimeoutError(f"{model} is not ready after {START_DEADLINE_S:g} s")
    return process.poll() is None


def _is_ready(port: int, model: str, headers: Mapping[str, str]) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_DEADLINE_S)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", f"/v2/models/{model}/ready", headers=dict(headers))
        return connection.getresponse().status == http.HTTPStatus.OK
    return False
