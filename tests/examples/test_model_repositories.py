# SPDX-License-Identifier: Apache-2.0
"""The examples of model repositories: each command of a README, in a process of its own."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import shutil
import subprocess

import pytest

from tests import peers
from tests.examples.readme_commands import commands
from tests.examples.repository_server import port_options, ready_server
from tests.free_ports import free_ports

REPOSITORY = pathlib.Path(__file__).parents[2]
EXAMPLES = sorted((REPOSITORY / "examples" / "python_backend").glob("*/model_repository"))
TIMEOUT_S = 60
NEEDED = re.compile(r"`pip install (\w+)`")

pytestmark = pytest.mark.e2e


def name_of(repository: pathlib.Path) -> str:
    return repository.parent.name


@pytest.mark.parametrize("repository", EXAMPLES, ids=name_of)
def test_commands_of_a_readme_do_what_it_says(repository):
    readme = repository.with_name("README.md")
    for package in NEEDED.findall(readme.read_text()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    shown = commands(readme)
    (server,) = [command for command in shown if command.serves]
    questions = [command for command in shown if not command.serves]
    assert server.arguments[1:] == (f"--model-repository={repository.relative_to(REPOSITORY)}",)
    ports = free_ports(3)

    with ready_server([*server.arguments, *port_options(ports)], REPOSITORY, ports[0]):
        for question in questions:
            command = question.on_ports(ports)
            if shutil.which(command[0]) is None:
                pytest.skip(f"{command[0]} is not installed")
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                check=False,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )

            assert done.returncode == 0, done.stdout + done.stderr
            assert '"error"' not in done.stdout
            if question.promised is not None:
                assert done.stdout == question.promised


def test_real_triton_answers_the_client_of_the_ensembles_alike():
    if peers.missing():
        pytest.skip(peers.missing())
    (repository,) = [each for each in EXAMPLES if name_of(each) == "ensemble"]
    _, question = commands(repository.with_name("README.md"))
    ports = free_ports(3)
    command = [*peers.triton_command(), f"--model-repository={repository}", *port_options(ports)]

    with ready_server(command, REPOSITORY, ports[0]):
        printed = subprocess.run(
            question.on_ports(ports),
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        ).stdout

    assert printed == question.promised


def test_every_example_has_client_and_page_and_is_listed():
    listed = (REPOSITORY / "examples" / "python_backend" / "README.md").read_text()

    for repository in EXAMPLES:
        assert repository.with_name("client.py").exists()
        assert f"({name_of(repository)}/README.md)" in listed
    assert len(EXAMPLES) >= 7
