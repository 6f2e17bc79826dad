# SPDX-License-Identifier: Apache-2.0
"""Imports the packages that backends need and that are not installed with this one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from pytriton.base.errors import InvalidArgumentError, UnavailableError


def import_wheel(module: str, extra: str, backend: str) -> ModuleType:
    """Import a module of a package that may be missing.

    Args:
        module: The module.
        extra: The extra of this package that installs it.
        backend: The backend that needs it.

    Raises:
        UnavailableError: The package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise  # the package is there, but something that it needs is not
        raise UnavailableError(
            f"backend '{backend}' needs {package}: pip install 'pytriton[{extra}]'"
        ) from error


_GIT_LFS = b"version https://git-lfs."


def explain_file(path: str | Path) -> str:
    """Returns a sentence to append to the error of a library, or nothing."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(len(_GIT_LFS))
    except OSError:
        return ""
    if start == _GIT_LFS:
        return " (the file is a pointer of Git LFS: fetch the model itself with 'git lfs pull')"
    return ""


SETTING = "default-max-batch-size"
_DEFAULT = 4


def default_max_batch_size(backend_config: Mapping[str, str]) -> int:
    """Returns what the server's settings for a backend say; a negative number counts as 0.

    Raises:
        InvalidArgumentError: The setting is not a number.
    """
    value = backend_config.get(SETTING, str(_DEFAULT))
    try:
        return max(int(value), 0)
    except ValueError as error:
        raise InvalidArgumentError(f"expected a number as {SETTING}, got '{value}'") from error
