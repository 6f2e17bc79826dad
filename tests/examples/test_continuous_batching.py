# SPDX-License-Identifier: Apache-2.0
"""The model.py of the example in a server of its own: ours, and the real Triton."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from tests import peers
from tests.e2e.waiting import DEADLINE_S
from tests.examples.readme_commands import commands
from tests.examples.repository_server import port_options, ready_server
from tests.free_ports import free_ports

REPOSITORY = pathlib.Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "continuous_batching"

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("kind", ["ours", pytest.param("real", marks=pytest.mark.part("peers"))])
def test_requests_join_and_leave_the_batch_of_a_model_file(kind):
    *_, question = commands(EXAMPLE / "README.md")
    ours = [str(pathlib.Path(question.arguments[0]).with_name("tritonserver"))]
    command = peers.triton_command() if kind == "real" else ours
    ports = free_ports(3)
    command += [f"--model-repository={EXAMPLE / 'model_repository'}", *port_options(ports)]

    with ready_server(command, REPOSITORY, ports[0]):
        printed = subprocess.run(
            question.on_ports(ports),
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        ).stdout

    assert printed == question.promised
