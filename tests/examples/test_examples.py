# SPDX-License-Identifier: Apache-2.0
"""The examples as a user runs them: the server in one process, each client in another."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests.free_ports import free_ports
from tests.guides import http_calls

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
MODELS = {"add_sub": "AddSub", "identity": "Identity", "linear": "Linear"}

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server():
    """The demo server, ready, as its process and HTTP port; it takes two more ports after that."""
    port = free_ports(1)[0]
    command = [sys.executable, str(EXAMPLES / "demo_server.py"), str(port)]
    with subprocess.Popen(command) as process:
        try:
            ready = [f"/v2/models/{model}/ready" for model in MODELS.values()]
            assert http_calls.eventually(
                lambda: (
                    http_calls.answers(port)
                    and all(http_calls.get(port, path)[0] == 200 for path in ready)
                )
            )
            yield process, port
        finally:
            process.terminate()
            process.wait(http_calls.DEADLINE_S)


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, str(EXAMPLES / script), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_every_example_has_server_client_and_readme():
    folders = sorted(path.name for path in EXAMPLES.iterdir() if (path / "server.py").exists())

    assert folders == sorted(MODELS)
    for folder in folders:
        assert (EXAMPLES / folder / "client.py").exists()
        assert (EXAMPLES / folder / "README.md").exists()


def test_add_sub_client_prints_sum_and_difference(server):
    _, port = server

    assert run("add_sub/client.py", f"127.0.0.1:{port}") == "add: 42.0\nsub: 38.0\n"


def test_identity_client_gets_its_bytes_back(server):
    _, port = server

    sent, received = run("identity/client.py", f"127.0.0.1:{port}").splitlines()

    assert r"\x00\xff\x00" in sent
    assert sent.removeprefix("sent:").strip() == received.removeprefix("received:").strip()


def test_linear_client_gets_the_best_class_of_each_sample(server):
    _, port = server

    assert run("linear/client.py", f"127.0.0.1:{port}").startswith("scores: (3, 30) ")


def test_demo_request_shows_question_and_answer(server):
    process, port = server

    shown = run("demo_request.py", port, process.pid)

    assert '"name": "a"' in shown
    assert "200 OK" in shown
    assert "[42.0]" in shown
