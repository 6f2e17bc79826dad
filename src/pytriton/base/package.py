# SPDX-License-Identifier: Apache-2.0
"""The place of this package, for processes that are started with its code."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGE_FOLDER = pathlib.Path(__file__).parents[1]
# The entry of sys.path from which the package is imported.
IMPORT_FOLDER = str(PACKAGE_FOLDER.parent)
_WORKER_SCRIPT = str(PACKAGE_FOLDER / "runtime" / "worker_process" / "__main__.py")


def command_of_worker(
    interpreter: str,
    title: str,
    connection: Sequence[str],
    fallback_paths: Sequence[str] = (),
    version: str = "",
) -> list[str]:
    """Returns the command of a worker, which another Python may run that lacks this package.

    `connection` has the options that say how it reaches its server. The fallback paths are for
    Pythons of this version only; "": for any.
    """
    command = [interpreter, _WORKER_SCRIPT, *connection, "--title", title]
    command += [f"--fallback-path={path}" for path in fallback_paths]
    return [*command, f"--fallback-version={version}"] if version else command
