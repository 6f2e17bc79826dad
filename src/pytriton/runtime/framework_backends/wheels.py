# SPDX-License-Identifier: Apache-2.0
"""Imports the packages that backends need and that are not installed with this one."""

from __future__ import annotations

import importlib
from types import ModuleType

from pytriton.base.errors import UnavailableError


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
