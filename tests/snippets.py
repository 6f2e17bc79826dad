# SPDX-License-Identifier: Apache-2.0
"""Finds the code blocks of a Markdown page."""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\s*$")


@dataclass(frozen=True)
class Snippet:
    """A fenced block: its language, its text, and the line of the page its first line stands on."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def snippets(page: pathlib.Path, language: str) -> list[Snippet]:
    """All blocks of one language, in the page's order."""
    return [block for block in _blocks(page) if block.language == language]


def _blocks(page: pathlib.Path) -> list[Snippet]:
    found: list[Snippet] = []
    opening: re.Match[str] | None = None
    start, text = 0, []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = FENCE.match(line)
        if opening is None and fence:
            opening, start, text = fence, number + 1, []
        elif opening is not None and fence and not fence["language"]:
            found.append(Snippet(page.name, start, opening["language"], "\n".join(text) + "\n"))
            opening = None
        elif opening is not None:
            text.append(line.removeprefix(opening["indent"]))
    if opening is not None:
        raise ValueError(f"{page}:{start - 1}: expected the end of this block, got the page's end")
    return found
