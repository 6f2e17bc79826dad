# SPDX-License-Identifier: Apache-2.0
"""The commands that an example's README shows, and the output that it promises for each."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import sys

from tests.snippets import snippets

_DEFAULT_PORTS = ("8000", "8001")


@dataclasses.dataclass(frozen=True)
class Command:
    arguments: tuple[str, ...]
    promised: str | None  # what it prints; None where the page does not say

    def on_ports(self, http_port: int, grpc_port: int) -> list[str]:
        """The command as it reaches a server that listens elsewhere."""
        ports = dict(zip(_DEFAULT_PORTS, (str(http_port), str(grpc_port)), strict=True))
        return [with_ports(argument, ports) for argument in self.arguments]


def with_ports(text: str, ports: dict[str, str]) -> str:
    for default, port in ports.items():
        text = text.replace(f"127.0.0.1:{default}", f"127.0.0.1:{port}")
    return text


def commands(readme: pathlib.Path) -> list[Command]:
    """The shell blocks of a page in its order; a text block belongs to the one before it."""
    found: list[Command] = []
    blocks = snippets(readme, "shell") + snippets(readme, "text")
    for block in sorted(blocks, key=lambda block: block.line):
        if block.language == "text":
            found[-1] = dataclasses.replace(found[-1], promised=block.text)
        else:
            program, *arguments = shlex.split(block.text)
            program = sys.executable if program == "python" else program
            found.append(Command((program, *arguments), None))
    return found
