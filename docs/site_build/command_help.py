# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: puts the help of all commands where a page has the mark for it.

The help is asked of the commands themselves while the site is built, so it cannot be out of date.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from pytriton import __main__ as pytriton_command
from pytriton.serving.server import tritonserver
from pytriton.tools.commands.table import ROWS, Group

MARK = "<!-- help of all commands -->"
_WIDTH = "88"  # columns that fit the site without scrolling


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replaces the mark by a section for each command."""
    return markdown.replace(MARK, "\n".join(_sections())) if MARK in markdown else markdown


def _sections() -> Iterator[str]:
    for group in Group:
        rows = [row for row in ROWS if row.group is group]
        if group is Group.CHECK:  # one help for all of them
            rows = [row for row in rows if row.name == "check"]
        yield from (
            _section(f"pytriton {row.name}", row.help, pytriton_command.main, [row.name, "--help"])
            for row in rows
        )
    about = "serve a model repository"
    yield _section("tritonserver", about, tritonserver.main, ["--help"])


def _section(
    name: str, about: str, main: Callable[[Sequence[str]], int], arguments: list[str]
) -> str:
    sentence = about[0].upper() + about[1:]
    return f"## {name}\n\n{sentence}.\n\n```text\n{_output(main, arguments).rstrip()}\n```\n"


def _output(main: Callable[[Sequence[str]], int], arguments: list[str]) -> str:
    printed = io.StringIO()
    plain = {"COLUMNS": _WIDTH, "NO_COLOR": "1"}
    with mock.patch.dict(os.environ, plain), contextlib.redirect_stdout(printed):
        try:
            main(arguments)
        except SystemExit as end:  # how argparse ends after its help
            if end.code not in (0, None):
                raise RuntimeError(f"{arguments} ended with {end.code}") from end
    return printed.getvalue()
