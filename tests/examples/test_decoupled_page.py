# SPDX-License-Identifier: Apache-2.0
"""The decoupled models: the pages that tell how to serve them are run as they stand."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections import Counter

import pytest

from tests.examples.repository_server import port_options, ready_server
from tests.free_ports import free_ports
from tests.guides.conftest import guides_folder
from tests.snippets import snippets

_LANGUAGES = ("console", "shell", "text", "")
_PROGRAMS = ("mkdir", "tritonserver", "python3")  # what a block of commands begins with
_TIMEOUT_S = 60


@dataclasses.dataclass
class Step:
    command: str
    shown: str = ""  # the output that stands below it
    printed: str = ""  # what came when it was run


def run_shell_page(page: pathlib.Path, folder: pathlib.Path, ports: list[int]) -> list[Step]:
    """Runs the commands of a page with bash, unchanged; gives those that asked the server.

    Ports are set by programs that stand in for those of the page and start them with more options.
    """
    steps = _steps(page)
    (server,) = [step for step in steps if step.command.startswith("tritonserver")]
    before, after = steps[: steps.index(server)], steps[steps.index(server) + 1 :]
    environment = os.environ | {"PATH": f"{_stand_ins(folder, ports)}:{os.environ['PATH']}"}
    for step in before:
        _run(step, folder, environment)
    command = ["env", f"PATH={environment['PATH']}", "bash", "-c", f"exec {server.command}"]
    with ready_server(command, folder, ports[0]):
        for step in after:
            _run(step, folder, environment)
    return after


def _steps(page: pathlib.Path) -> list[Step]:
    steps: list[Step] = []
    blocks = [block for language in _LANGUAGES for block in snippets(page, language)]
    for block in sorted(blocks, key=lambda block: block.line):
        if block.text.startswith(_PROGRAMS):
            steps.append(Step(block.text))
        elif steps:
            steps[-1].shown = block.text
    return steps


def _stand_ins(folder: pathlib.Path, ports: list[int]) -> pathlib.Path:
    binaries = folder / "bin"
    binaries.mkdir()
    tritonserver = str(pathlib.Path(sys.executable).with_name("tritonserver"))
    for name, program, options in (
        ("tritonserver", tritonserver, port_options(ports)),
        ("python3", sys.executable, [f"--url=127.0.0.1:{ports[1]}"]),
    ):
        stand_in = binaries / name
        stand_in.write_text(f'#!/bin/sh\nexec {shlex.quote(program)} "$@" {shlex.join(options)}\n')
        stand_in.chmod(0o755)
    return binaries


def _run(step: Step, folder: pathlib.Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-euc", step.command],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    step.printed = done.stdout


REPOSITORY = pathlib.Path(__file__).parents[2]
GUIDE = guides_folder() / "decoupled_examples.md"

pytestmark = pytest.mark.e2e


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(REPOSITORY / "examples" / "decoupled" / "README.md", id="README"),
        pytest.param(
            GUIDE,
            id="guide",
            marks=[
                pytest.mark.guide,
                pytest.mark.skipif(
                    not GUIDE.exists(),
                    reason="the guides are not beside this checkout; PYTRITON_GUIDES names them",
                ),
            ],
        ),
    ],
)
def outputs(request, tmp_path_factory):
    """Lines that the page shows for the repeat and for the square client, and those that came."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    steps = run_shell_page(request.param, folder, free_ports(3))
    return [(lines_of(step.shown), lines_of(step.printed)) for step in steps]


def lines_of(text):
    # Two threads of a client print, and the second may begin before the first one's end of line.
    return re.sub(r"\.\.\.(?=\S)", "...\n", text).strip().split("\n")


def test_repeat_client_prints_what_the_page_shows_in_its_order(outputs):
    (shown, printed), _ = outputs
    lines = iter(printed)

    # What comes may have more lines: a server of today adds parameters to each response.
    assert [line for line in shown if line not in lines] == []
    assert printed.count("infer_response {") == 4
    assert printed[-2:] == ["PASS: repeat_int32", "stream stopped..."]


def test_square_client_prints_what_the_page_shows_in_any_order(outputs):
    _, (shown, printed) = outputs

    assert Counter(shown) - Counter(printed) == Counter()
    assert printed.count("infer_response {") == 7
    assert printed[-2:] == ["PASS: square_int32", "stream stopped..."]
