# SPDX-License-Identifier: Apache-2.0
"""Our clients and the real PyTriton's get the same, from our server and from the real one."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from tests.client.conftest import peer_python

SCRIPT = pathlib.Path(__file__).with_name("peer_client.py")
TIMEOUT_S = 120


def outcomes(python, server):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    process = subprocess.run(
        [str(python), str(SCRIPT), server.urls["http"], server.urls["grpc"]],
        env=environment,
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def expected(real_server):
    """What the real clients get from the real server."""
    return outcomes(peer_python(), real_server)


def test_our_clients_get_the_same_from_the_real_server(expected, real_server):
    assert outcomes(sys.executable, real_server) == expected


def test_real_clients_get_the_same_from_our_server(expected, our_server):
    assert outcomes(peer_python(), our_server) == expected


def test_our_clients_get_the_same_from_our_server(expected, our_server):
    assert outcomes(sys.executable, our_server) == expected
