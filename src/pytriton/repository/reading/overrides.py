# SPDX-License-Identifier: Apache-2.0
"""What a client sends along to be loaded instead of the repository's files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pytriton.errors import InvalidArgumentError
from pytriton.repository.reading.layout import ModelPlace, is_inside


class Override(msgspec.Struct, frozen=True):
    """A configuration as JSON, and files by their path in the model's directory."""

    config: str
    files: Mapping[str, bytes]


def read_override(config: str | None, files: Mapping[str, bytes]) -> Override | None:
    """What is to be loaded instead of the repository's files; None where nothing is.

    Raises:
        InvalidArgumentError: Files came without a configuration, or would lie elsewhere.
    """
    for path in files:
        if not is_inside(path) or os.path.normpath(path) == os.curdir:
            raise InvalidArgumentError(
                f"Invalid file parameter 'file:{path}' with normalized path "
                f"'{os.path.normpath(path)}' must stay within model directory."
            )
    if config is not None:
        return Override(config, files)
    if files:
        raise InvalidArgumentError(
            "Load parameter 'config' must be specified for model file override"
        )
    return None


def write_files(override: Override) -> ModelPlace:
    """A new directory that has the files, and that only this user may read."""
    directory = Path(tempfile.mkdtemp(prefix="tritonserver_model_"))
    try:
        for name, content in override.files.items():
            path = directory / os.path.normpath(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except BaseException:
        remove_files(directory)
        raise
    return ModelPlace(directory, directory)


def remove_files(directory: Path) -> None:
    """Remove such a directory, as far as that is possible."""
    shutil.rmtree(directory, ignore_errors=True)
