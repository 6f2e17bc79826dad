# SPDX-License-Identifier: Apache-2.0
"""A page that starts a server and asks it: its commands are run in order, as they stand."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.e2e.http_client import call, is_ready
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.examples.repository_server import port_options
from tests.snippets import snippets

_DEFAULT_PORTS = ("8000", "8001", "8002")
_CHANGES = (" -d ", " -X POST", "mv ")  # what is in commands that must run only once


@dataclasses.dataclass
class Step:
    line: int  # of the page
    command: str
    shown: str | None = None  # the output that stands below it
    printed: str = ""  # what came when it was run
    status: int = 0

    @property
    def fits(self) -> bool:
        """Whether it printed what the page shows; `...` stands for anything on its line."""
        return self.status == 0 and (
            self.shown is None or bool(re.fullmatch(_pattern(self.shown), self.printed.rstrip()))
        )


def steps(page: Path) -> list[Step]:
    """The shell blocks of a page; a text block belongs to the one before it."""
    found: list[Step] = []
    blocks = snippets(page, "shell") + snippets(page, "text")
    for block in sorted(blocks, key=lambda block: block.line):
        if block.language == "shell":
            found.append(Step(block.line, block.text))
        else:
            assert found[-1].shown is None, f"{block}: there is no command for this output"
            found[-1].shown = block.text
    return found


class PageSession:
    """The server of a page, which its first command starts, and a shell for the other ones."""

    def __init__(self, page: Path, folder: Path, ports: Sequence[int]) -> None:
        self.folder = folder
        self.ports = ports
        self.server_command, *self.steps = steps(page)
        assert self.server_command.command.startswith("tritonserver ")
        self._environment = os.environ | {"PATH": f"{self._stand_ins()}:{os.environ['PATH']}"}

    @contextlib.contextmanager
    def serving(self) -> Iterator[subprocess.Popen[bytes]]:
        """Gives the server once it is ready."""
        command = ["bash", "-c", f"exec {self.server_command.command}"]
        with subprocess.Popen(command, cwd=self.folder, env=self._environment) as process:
            try:
                assert eventually(lambda: process.poll() is not None or is_ready(self.ports[0]))
                assert process.poll() is None, f"the server ended with {process.returncode}"
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def run(self) -> None:
        """Run every command; one that only reads is run until it prints what the page shows."""
        for step in self.steps:
            if any(change in step.command for change in _CHANGES):
                self._run(step)
            else:
                eventually(lambda step=step: self._run(step).fits)

    def status(self, path: str) -> int:
        return call(self.ports[0], path).status

    def _run(self, step: Step) -> Step:
        text = step.command
        for default, port in zip(_DEFAULT_PORTS, self.ports, strict=True):
            text = text.replace(f"localhost:{default}", f"127.0.0.1:{port}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=self._environment,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
        )
        step.printed, step.status = done.stdout, done.returncode
        return step

    def _stand_ins(self) -> Path:
        """Programs that start those of this environment, the server with ports of its own."""
        programs = self.folder / "programs"
        programs.mkdir()
        addresses = [f"--{name}-address=127.0.0.1" for name in ("http", "grpc", "metrics")]
        for name, module, options in (
            ("tritonserver", "pytriton.server", [*addresses, *port_options(self.ports)]),
            ("pytriton", "pytriton", []),
        ):
            command = shlex.join([sys.executable, "-m", module])
            path = programs / name
            path.write_text(f'#!/bin/sh\nexec {command} "$@" {shlex.join(options)}\n')
            path.chmod(0o755)
        return programs


def _pattern(shown: str) -> str:
    pattern = re.escape(shown.rstrip()).replace(r"\.\.\.", "[^\n]*")
    return pattern + (r"[\s\S]*" if shown.rstrip().endswith("...") else "")
