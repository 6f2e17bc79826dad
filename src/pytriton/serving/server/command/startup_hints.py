# SPDX-License-Identifier: Apache-2.0
"""What the user can do about a server that does not start, beside the errors of Triton."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_PORT_IN_USE = re.compile(r"failed to start (.+) service: .* already in use")
_CONFIG = "config.pbtxt"


def port_hint(message: str) -> str:
    """Returns what to do about a port that is taken; "" if the error is another one."""
    found = _PORT_IN_USE.match(message)
    if found is None:
        return ""
    option = f"--{found[1].lower().replace(' ', '-')}-port"
    return f"Stop the program that uses it, or choose another port with {option}"


def repository_hints(paths: Sequence[str]) -> list[str]:
    """Returns what is wrong with folders that were given as repositories."""
    hints: list[str] = []
    for folder in (Path(path).absolute() for path in paths if "://" not in path):
        hint = _folder_hint(folder)
        hints += [hint] if hint else _version_hints(folder)
    return hints


def _folder_hint(folder: Path) -> str:
    if not folder.exists():
        return f"Expected a folder of models, but {folder} does not exist"
    if not folder.is_dir():
        return f"Expected a folder of models, but {folder} is a file"
    if (folder / _CONFIG).exists():
        return (
            f"{folder} is the folder of one model, as it has a {_CONFIG}: "
            f"the repository is perhaps the one above, --model-repository={folder.parent}"
        )
    return ""


def _version_hints(repository: Path) -> list[str]:
    """Returns which models have their file beside `config.pbtxt`, where no version has it."""
    try:
        files = sorted(repository.glob("*/model.*"))
        return [
            f"{file} is not in the folder of a version: move it to {file.parent}/1/{file.name}"
            for file in files
            if not any(each.is_dir() and each.name.isdecimal() for each in file.parent.iterdir())
        ]
    except OSError:  # the errors of the models say which folder cannot be read
        return []
