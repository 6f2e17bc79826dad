# SPDX-License-Identifier: Apache-2.0
"""The manual of `tritonserver` lists the options that the command has."""

from __future__ import annotations

import pathlib

from pytriton.serving.server.command.table import OPTIONS

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "tritonserver.md"


def row(option):
    title = f"--{option.name} {option.value}".strip().replace("|", "\\|")
    default = f"`{option.default}`" if option.default else ""
    meaning = option.help.replace("*", "`*`").replace("<", "&lt;")
    if option.instead:
        meaning += f" Use `{option.instead}` instead."
    if not option.has_effect:
        meaning += " *No effect.*"
    return f"| `{title}` | {default} | {meaning} |"


def section(group):
    lines = [f"### {group}", "", "| option | default | meaning |", "|---|---|---|"]
    return "\n".join([*lines, *map(row, OPTIONS[group])])


def test_manual_ends_with_all_options():
    expected = "\n\n".join(map(section, OPTIONS)) + "\n"

    assert PAGE.read_text().endswith(expected), f"the page should end with:\n{expected}"
