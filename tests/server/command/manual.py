# SPDX-License-Identifier: Apache-2.0
"""The end of `docs/tritonserver.md`, made of the table of settings.

`python -m tests.server.command.manual` writes it into the page.
"""

from __future__ import annotations

import pathlib

from pytriton.base.settings import SETTINGS

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "tritonserver.md"


def row(setting):
    title = f"--{setting.name} {setting.value}".strip().replace("|", "\\|")
    default = f"`{setting.default}`" if setting.default else ""
    meaning = setting.help.replace("*", "`*`").replace("<", "&lt;")
    if setting.instead:
        meaning += f" Use `{setting.instead}` instead."
    if not setting.has_effect:
        meaning += " *No effect.*"
    return f"| `{title}` | {default} | {meaning} |"


def section(group):
    lines = [f"### {group}", "", "| option | default | meaning |", "|---|---|---|"]
    return "\n".join([*lines, *map(row, SETTINGS[group])])


def options():
    return "\n\n".join(map(section, SETTINGS)) + "\n"


if __name__ == "__main__":
    before, _, _ = PAGE.read_text().partition(f"### {next(iter(SETTINGS))}\n")
    PAGE.write_text(before + options())
