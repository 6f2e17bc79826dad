# SPDX-License-Identifier: Apache-2.0
"""Finds the code blocks of a Markdown page, and runs the Python ones in a process of their own."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass

from tests.free_ports import free_ports

PAGE_TIMEOUT_S = 180
FENCE = re.compile(r'^(?P<indent> *)```(?P<language>\w*)(?: +title="(?P<title>[^"]+)")?\s*$')


@dataclass(frozen=True)
class Snippet:
    """A fenced block: its language, its text, and the line of the page its first line stands on.

    A block with a title is a file of that name.
    """

    page: str
    line: int
    language: str
    text: str
    title: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def snippets(page: pathlib.Path, language: str) -> list[Snippet]:
    """All blocks of one language, in the page's order, without those that are files."""
    return [block for block in blocks(page) if block.language == language and not block.title]


def run_python_blocks(results: pathlib.Path, *pages: pathlib.Path) -> dict[str, str | None]:
    """Runs the Python blocks of pages as `tests/run_page.py` says; gives each one's error.

    Returns:
        For each block its error, or None; the key is the page's path and the block's line.

    Raises:
        RuntimeError: the process ended before the first block did.
    """
    environment = dict(os.environ)
    names = ("HTTP_PORT", "GRPC_PORT", "METRICS_PORT")
    for name, port in zip(names, free_ports(len(names)), strict=True):
        environment[f"PYTRITON_TRITON_CONFIG_{name}"] = str(port)
    runner = pathlib.Path(__file__).with_name("run_page.py")
    folder = results.parent  # some blocks write files, some read those of the examples
    examples = folder / "examples"
    if not examples.exists():
        examples.symlink_to(runner.parent.with_name("examples"))
    process = subprocess.run(
        [sys.executable, str(runner), str(results), *map(str, pages)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PAGE_TIMEOUT_S,
        check=False,
    )
    if not results.exists():
        raise RuntimeError(f"no block was run:\n{process.stdout}\n{process.stderr}")
    outcomes: dict[str, str | None] = json.loads(results.read_text())
    return outcomes


def blocks(page: pathlib.Path) -> list[Snippet]:
    """All blocks of a page, in its order."""
    found: list[Snippet] = []
    opening: re.Match[str] | None = None
    start, text = 0, []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = FENCE.match(line)
        if opening is None and fence:
            opening, start, text = fence, number + 1, []
        elif opening is not None and fence and not fence["language"] and not fence["title"]:
            lines = "\n".join(text) + "\n"
            found.append(Snippet(page.name, start, opening["language"], lines, opening["title"]))
            opening = None
        elif opening is not None:
            text.append(line.removeprefix(opening["indent"]))
    if opening is not None:
        raise ValueError(f"{page}:{start - 1}: expected the end of this block, got the page's end")
    return found
