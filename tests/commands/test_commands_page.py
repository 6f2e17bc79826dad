# SPDX-License-Identifier: Apache-2.0
"""docs/commands.md: its commands print what it shows, and it names every command."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from pytriton.__main__ import main
from pytriton.tools.commands.table import ROWS
from tests.e2e.http_client import is_ready
from tests.e2e.waiting import eventually
from tests.free_ports import first_of_free_ports
from tests.repository_e2e.page_session import steps
from tests.snippets import blocks

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "commands.md"
STEPS = steps(PAGE)


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The port of a server of the page's file."""
    folder = tmp_path_factory.mktemp("page")
    (file,) = [block for block in blocks(PAGE) if block.title]
    (folder / file.title).write_text(file.text)
    port = first_of_free_ports(3)
    names = zip(("http", "grpc", "metrics"), range(port, port + 3), strict=True)
    options = [f"--{name}-port={number}" for name, number in names]
    command = [sys.executable, "-m", "pytriton", "serve", file.title, *options]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        # The models are bound in turn, when the server has started.
        assert eventually(lambda: process.poll() is not None or is_ready(port, "story"))
        yield port
        process.terminate()


def with_ports(command, port):
    """The words of a command that asks the server of this test."""
    words = shlex.split(command.replace("localhost:8001", f"localhost:{port + 1}"))
    return words[1:] if "-u" in words else [*words[1:], "-u", f"localhost:{port}"]


def as_on_the_page(text, port):
    text = re.sub(rf" -u http://localhost:{port}", "", text)
    lines = text.replace(f"localhost:{port}", "localhost:8000").split("\n")
    return "\n".join(line.rstrip() for line in lines)


@pytest.mark.e2e
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"line {step.line}")
def test_command_prints_what_the_page_shows(step, port):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        step.status = main(with_ports(step.command, port))
    step.printed = as_on_the_page(output.getvalue(), port)

    assert step.fits, step.printed


def test_page_names_every_command():
    text = PAGE.read_text()
    named = set(re.findall(r"`(?:pytriton )?([a-z-]+)", text))

    # The examples are on the page of the checks.
    assert {row.name for row in ROWS if not row.name.startswith("example-")} - named == set()
