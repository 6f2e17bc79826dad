# SPDX-License-Identifier: Apache-2.0
"""The commands that an example's README shows, and the output that it promises for each."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import sys

from tests.snippets import snippets

_DEFAULT_PORTS = ("8000", "8001", "8002")
_SERVING = ("server.py", "binder.py", "tritonserver", "serve")  # run until they are ended
_PROGRAMS = {
    "python": sys.executable,
    "pytriton": str(pathlib.Path(sys.executable).with_name("pytriton")),
    "tritonserver": str(pathlib.Path(sys.executable).with_name("tritonserver")),
}


@dataclasses.dataclass(frozen=True)
class Command:
    arguments: tuple[str, ...]
    promised: str | None  # what it prints; None where the page does not say
    environment: dict[str, str]  # exported before it
    text: str = ""  # as the page has it, for a shell

    @property
    def serves(self) -> bool:
        """Whether it goes on until it is ended."""
        return any(argument.endswith(_SERVING) for argument in self.arguments[:2])

    def on_ports(self, ports: list[int]) -> list[str]:
        """The command as it reaches a server that listens elsewhere."""
        moved = dict(zip(_DEFAULT_PORTS, map(str, ports), strict=True))
        return [with_ports(argument, moved) for argument in self.arguments]


def with_ports(text: str, ports: dict[str, str]) -> str:
    for default, port in ports.items():
        text = text.replace(f"127.0.0.1:{default}", f"127.0.0.1:{port}")
    return text


def commands(readme: pathlib.Path) -> list[Command]:
    """The shell blocks of a page in its order; a text block belongs to the one before it."""
    found: list[Command] = []
    environment: dict[str, str] = {}
    blocks = snippets(readme, "shell") + snippets(readme, "text")
    for block in sorted(blocks, key=lambda block: block.line):
        if block.language == "text":
            found[-1] = dataclasses.replace(found[-1], promised=block.text)
            continue
        program, *arguments = shlex.split(block.text)
        if program == "export":
            environment |= dict(argument.split("=", 1) for argument in arguments)
        else:
            program = _PROGRAMS.get(program, program)
            found.append(Command((program, *arguments), None, dict(environment), block.text))
    return found
