# SPDX-License-Identifier: Apache-2.0
"""The examples of model repositories: each command of a README, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests import peers
from tests.examples.readme_commands import Command, commands
from tests.examples.repository_server import port_options, ready_server
from tests.free_ports import free_ports

REPOSITORY = pathlib.Path(__file__).parents[2]
FOLDERS = ("python_backend", "backends")
EXAMPLES = sorted(
    found
    for folder in FOLDERS
    for found in (REPOSITORY / "examples" / folder).glob("*/model_repository")
    if any(command.serves for command in commands(found.with_name("README.md")))
)
TIMEOUT_S = 180
NEEDED = re.compile(r"`pip install (\w+)`")

pytestmark = pytest.mark.e2e


def name_of(repository: pathlib.Path) -> str:
    return repository.parent.name


def prepare(command: Command) -> None:
    """Run what a page wants to be done before the server starts, as a shell does it."""
    if shutil.which(command.arguments[0]) is None:
        pytest.skip(f"{command.arguments[0]} is not installed")
    programs = pathlib.Path(sys.executable).parent
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-c", command.text],
        cwd=REPOSITORY,
        check=True,
        env={**os.environ, "PATH": path},
        timeout=TIMEOUT_S,
    )


@pytest.mark.parametrize("repository", EXAMPLES, ids=name_of)
def test_commands_of_a_readme_do_what_it_says(repository):
    readme = repository.with_name("README.md")
    for package in NEEDED.findall(readme.read_text()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    shown = commands(readme)
    (server,) = [command for command in shown if command.serves]
    before, questions = shown[: shown.index(server)], shown[shown.index(server) + 1 :]
    for command in before:
        prepare(command)
    assert server.arguments[1] == f"--model-repository={repository.relative_to(REPOSITORY)}"
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


@pytest.mark.part("peers")
@pytest.mark.parametrize("name", ["ensemble", "c_backend"])
def test_real_triton_answers_the_client_of_an_example_alike(name):
    (repository,) = [each for each in EXAMPLES if name_of(each) == name]
    *before, _, question = commands(repository.with_name("README.md"))
    for preparation in before:
        prepare(preparation)
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


def test_file_of_the_onnx_example_is_what_its_script_writes(tmp_path):
    onnx = pytest.importorskip("onnx")
    folder = REPOSITORY / "examples" / "backends" / "onnx"
    command = [sys.executable, str(folder / "make_model.py"), str(tmp_path / "model.onnx")]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    made, kept = tmp_path / "model.onnx", folder / "model_repository" / "xor" / "1" / "model.onnx"

    assert onnx.load(str(made)) == onnx.load(str(kept))


def test_every_example_has_client_and_page_and_is_listed():
    for repository in EXAMPLES:
        listed = repository.parents[1].joinpath("README.md").read_text()
        assert repository.with_name("client.py").exists()
        assert f"({name_of(repository)}/README.md)" in listed
    assert len(EXAMPLES) >= 7
