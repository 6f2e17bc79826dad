# SPDX-License-Identifier: Apache-2.0
"""Finds the files of a model on a machine that is not the server's."""

from __future__ import annotations

import os

from pytriton.base.errors import InternalError
from pytriton.base.package import PACKAGE_FOLDER
from pytriton.runtime.transport.frames import PACKAGE_FILE, Initialize


def find_files(frame: Initialize) -> None:
    """Look for the files of a model, and fill in the paths of those that are in this package.

    On the server's own machine nothing is done: the loading of the model reports what is missing.

    Raises:
        InternalError: A file or folder is not there.
    """
    if not frame.sharing:
        return
    if frame.model_path.startswith(PACKAGE_FILE):
        frame.model_path = str(PACKAGE_FOLDER / frame.model_path.removeprefix(PACKAGE_FILE))
    needed = (frame.model_path, frame.model_directory, frame.arguments.get("model_repository", ""))
    for path in needed:
        if path and not os.access(path, os.R_OK):
            raise InternalError(f"'{path}' cannot be read there: {frame.sharing}")
