# SPDX-License-Identifier: Apache-2.0
"""The example of a backend of one's own with a setting of the server, and in the real Triton."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from tests import peers
from tests.examples.readme_commands import Command, commands
from tests.examples.repository_server import port_options, ready_server
from tests.free_ports import free_ports

REPOSITORY = pathlib.Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "backends" / "own_backend"
TIMEOUT_S = 180

pytestmark = pytest.mark.e2e


def printed(question: Command, ports: list[int]) -> str:
    done = subprocess.run(
        question.on_ports(ports),
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_setting_of_the_server_reaches_the_backend():
    server, client, _ = commands(EXAMPLE / "README.md")
    ports = free_ports(3)
    flags = ["--backend-config=lookup,default=berlin", *port_options(ports)]

    with ready_server([*server.arguments, *flags], REPOSITORY, ports[0]):
        assert printed(client, ports).splitlines()[-1] == "atlantis [52.52  13.405]"


@pytest.mark.part("peers")
def test_real_triton_serves_the_same_folders(tmp_path):
    _, client, _ = commands(EXAMPLE / "README.md")
    ports = free_ports(3)
    command = peers.triton_command()
    (directory,) = [each for each in command if each.startswith("--backend-directory=")] or [""]
    (tmp_path / "python").symlink_to(pathlib.Path(directory.partition("=")[2], "python"))
    (tmp_path / "lookup").symlink_to(EXAMPLE / "backends" / "lookup")
    options = [f"--model-repository={EXAMPLE / 'model_repository'}"]
    options += [f"--backend-directory={tmp_path}", *port_options(ports)]

    with ready_server([*command, *options], REPOSITORY, ports[0]):
        assert printed(client, ports) == client.promised
