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
from tests import peers
from tests.client_differential.case import Servers
from tests.client_differential.models import LAST_MODEL, RESTRICTED, TOKEN
from tests.free_ports import free_ports

ROOT = Path(__file__).parents[2]
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
    """One server of each kind, started one after the other: the original gives up otherwise."""
    is_real = python != our_python()
    starts = peers.STARTS if is_real else 1
    headers = create_auth_headers(TOKEN, "http")
    numbers = iter(free_ports(len(PROTOCOLS) * len(RESTRICTED)))
    ports = {kind: {name: next(numbers) for name in PROTOCOLS} for kind in RESTRICTED}
    with contextlib.ExitStack() as stack:
        for kind, of_kind in ports.items():
            arguments = ["tests.client_differential.models", kind, *map(str, of_kind.values())]
            command = [str(python), "-m", *arguments]
            stack.enter_context(
                peers.serving(
                    command,
                    of_kind["http"],
                    LAST_MODEL,
                    headers,
                    starts=starts,
                    env=environment(python),
                )
            )
        yield Servers(ports, is_real)


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
