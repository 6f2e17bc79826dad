# SPDX-License-Identifier: Apache-2.0
"""A `tritonserver` as a user starts it, ready to be asked, on ports that nobody else has."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator, Sequence

from tests.e2e.waiting import eventually
from tests.guides import http_calls

START_S = 120  # torch and jax take their time, and more on a busy machine
END_S = 180


def port_options(ports: Sequence[int]) -> list[str]:
    return [
        f"--{name}-port={port}"
        for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)
    ]


@contextlib.contextmanager
def ready_server(command: list[str], folder: pathlib.Path, http_port: int) -> Iterator[None]:
    """Gives the server once it is ready; it has to end by itself when it is asked to."""
    with subprocess.Popen(command, cwd=folder) as process:
        try:
            assert eventually(
                lambda: process.poll() is not None or _is_ready(http_port), START_S
            ), "the server is not ready"
            assert process.poll() is None, f"the server ended with {process.returncode}"
            yield
        finally:
            process.terminate()
            status = process.wait(END_S)
    assert status == 0


def _is_ready(http_port: int) -> bool:
    return http_calls.answers(http_port) and http_calls.get(http_port, "/v2/health/ready")[0] == 200
