# SPDX-License-Identifier: Apache-2.0
"""The examples as a user runs them: each command of a README, in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.examples.readme_commands import commands
from tests.free_ports import first_of_free_ports, free_ports
from tests.guides import http_calls

REPOSITORY = pathlib.Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"
SERVERS = sorted(EXAMPLES.glob("*/server.py"))
# Those that need more than their packages; the cluster of one is in `tests/cluster`.
ELSEWHERE = ("ray",)
DEMO_MODELS = ("AddSub", "Identity", "Linear")
PORT_NAMES = ("HTTP_PORT", "GRPC_PORT", "METRICS_PORT")
TIMEOUT_S = 180
NEEDED = re.compile(r"`pip install (\w+)`")

pytestmark = pytest.mark.e2e


def environment(ports: list[int]) -> dict[str, str]:
    """Variables that move a server with default settings to other ports."""
    names = (f"PYTRITON_TRITON_CONFIG_{name}" for name in PORT_NAMES)
    return os.environ | dict(zip(names, map(str, ports), strict=True))


@contextlib.contextmanager
def running(command: list[str], ports: list[int], variables: dict[str, str] | None = None):
    settings = environment(ports) | (variables or {})
    with subprocess.Popen(command, cwd=REPOSITORY, env=settings) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def output_of(command: list[str]) -> str:
    done = subprocess.run(
        command, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def name_of(server: pathlib.Path) -> str:
    return server.parent.name


@pytest.mark.parametrize(
    "server", [each for each in SERVERS if name_of(each) not in ELSEWHERE], ids=name_of
)
def test_commands_of_a_readme_do_what_it_says(server):
    check_commands(server)


def check_commands(server: pathlib.Path) -> None:
    """Runs the commands of an example's page, and compares what they print with it."""
    readme = server.with_name("README.md")
    for package in NEEDED.findall(readme.read_text()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    shown = commands(readme)
    questions = [command for command in shown if not command.serves]
    assert shown[0].arguments[1:] == (f"examples/{name_of(server)}/server.py",)
    assert questions[0].arguments[1] == f"examples/{name_of(server)}/client.py"
    ports = free_ports(3)

    with contextlib.ExitStack() as stack:
        for command in shown:
            if command.serves:
                arguments = command.on_ports(ports)
                stack.enter_context(running(arguments, ports, command.environment))
        for question in questions:
            command = question.on_ports(ports)
            if shutil.which(command[0]) is None:
                pytest.skip(f"{command[0]} is not installed")
            printed = output_of(command)
            # A promise ends with a line's end, which curl does not add to what it received.
            if question.promised is not None:
                assert printed.rstrip("\n") == question.promised.rstrip("\n")
            assert '"error"' not in printed


@pytest.fixture(scope="module")
def demo():
    """The demo server, ready, as its process and HTTP port; it takes two more ports after that."""
    port = first_of_free_ports(3)
    with running([sys.executable, "examples/demo_server.py", str(port)], [0, 0, 0]) as process:
        ready = [f"/v2/models/{model}/ready" for model in DEMO_MODELS]
        assert http_calls.eventually(
            lambda: (
                http_calls.answers(port)
                and all(http_calls.get(port, path)[0] == 200 for path in ready)
            )
        )
        yield process, port


def test_demo_request_shows_question_and_answer(demo):
    process, port = demo

    shown = output_of([sys.executable, "examples/demo_request.py", str(port), str(process.pid)])

    assert '"name": "a"' in shown
    assert "200 OK" in shown
    assert "[42.0]" in shown


def test_demo_has_given_up_its_ports_when_it_ends(demo):
    process, port = demo
    output_of([sys.executable, "examples/demo_request.py", str(port), str(process.pid)])

    process.terminate()

    assert process.wait(TIMEOUT_S) == 0
    assert not http_calls.answers(port)


def test_every_server_has_client_and_readme():
    for server in SERVERS:
        assert server.with_name("client.py").exists()
        assert server.with_name("README.md").exists()
    assert len(SERVERS) >= 9


def test_every_example_is_in_the_table():
    table = (EXAMPLES / "README.md").read_text()
    pages = sorted(EXAMPLES.glob("*/README.md")) + sorted(EXAMPLES.glob("*/*/README.md"))

    assert [page for page in pages if f"({page.relative_to(EXAMPLES)})" not in table] == []
