# SPDX-License-Identifier: Apache-2.0
"""The servers and the clients of either package, each in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytriton.client.auth import create_auth_headers
from pytriton.client.utils import create_client_from_url, wait_for_model_ready
from tests.client_differential.case import Servers
from tests.client_differential.models import LAST_MODEL, RESTRICTED, TOKEN
from tests.free_ports import free_ports

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 180.0
ASK_TIMEOUT_S = 600.0
PROTOCOLS = ("http", "grpc", "metrics")


def our_python() -> Path:
    """The interpreter that has this package."""
    return Path(sys.executable)


def environment(python: Path) -> dict[str, str]:
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


@contextlib.contextmanager
def serving(python: Path) -> Iterator[Servers]:
    """One server of each kind."""
    is_real = python != our_python()
    numbers = iter(free_ports(3 * len(RESTRICTED)))
    ports = {kind: {name: next(numbers) for name in PROTOCOLS} for kind in RESTRICTED}
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        for kind, of_kind in ports.items():
            stack.enter_context(running(python, log, kind, *map(str, of_kind.values())))
            if is_real:  # the original gives up where several start side by side
                wait_until_ready(of_kind["http"], log)
        for of_kind in ports.values():
            wait_until_ready(of_kind["http"], log)
        yield Servers(ports, is_real)


@contextlib.contextmanager
def running(python: Path, log: Any, *arguments: str) -> Iterator[None]:
    process = subprocess.Popen(
        [str(python), "-m", "tests.client_differential.models", *arguments],
        env=environment(python),
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=tempfile.gettempdir(),
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        finally:
            process.kill()


def wait_until_ready(port: int, log: Any) -> None:
    with create_client_from_url(f"http://127.0.0.1:{port}") as client:
        try:
            wait_for_model_ready(
                client, LAST_MODEL, None, START_TIMEOUT_S, create_auth_headers(TOKEN, "http")
            )
        except Exception as error:
            log.seek(0)
            raise RuntimeError(f"{error}\n{log.read().decode()}") from error


def asked(python: Path, servers: Servers) -> dict[str, Any]:
    """What the clients of an interpreter get from the servers."""
    process = subprocess.run(
        [str(python), "-m", "tests.client_differential.asking", json.dumps(asdict(servers))],
        env=environment(python),
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        timeout=ASK_TIMEOUT_S,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"ended with {process.returncode}: {process.stderr}")
    answers: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return answers
