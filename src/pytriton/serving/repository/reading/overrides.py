# SPDX-License-Identifier: Apache-2.0
"""Configurations and files that a client sends to be loaded instead of the repository's files."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.serving.repository.reading.layout import ModelPlace, is_inside

# Of a path that no file can have, alone or beside the others.
_PATH_ERRORS = frozenset({errno.ENAMETOOLONG, errno.EISDIR, errno.EEXIST, errno.ENOTDIR})


class Override(msgspec.Struct, frozen=True):
    """A configuration as JSON, and files by their path in the model's directory."""

    config: str
    files: Mapping[str, bytes]


def read_override(config: str | None, files: Mapping[str, bytes]) -> Override | None:
    """Returns what to load instead of the repository's files; None if the client sent nothing.

    Raises:
        InvalidArgumentError: There are files without a configuration, or with a path to outside.
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
    """Write the files to a new directory that only this user may read.

    Raises:
        InvalidArgumentError: A file cannot have its path.
        InternalError: A file cannot be written.
    """
    directory = Path(tempfile.mkdtemp(prefix="tritonserver_model_"))
    try:
        for name, content in override.files.items():
            _write(directory / os.path.normpath(name), name, content)
    except BaseException:
        remove_files(directory)
        raise
    return ModelPlace(directory, directory)


def _write(path: Path, name: str, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:  # its own text has the directory, which clients need not know
        if error.errno in _PATH_ERRORS:
            raise InvalidArgumentError(
                f"expected the path of a file in load parameter 'file:{name}', got one that cannot "
                f"be written: {error.strerror}"
            ) from None
        raise InternalError(
            f"load parameter 'file:{name}' with {len(content)} bytes cannot be written: "
            f"{error.strerror}"
        ) from error


def remove_files(directory: Path) -> None:
    """Remove such a directory, as far as possible."""
    shutil.rmtree(directory, ignore_errors=True)
