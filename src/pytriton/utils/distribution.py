# SPDX-License-Identifier: Apache-2.0
"""Where the package is installed, and how."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib

from pytriton.base.package import PACKAGE_FOLDER

_DISTRIBUTION_NAME = "pytriton"


def get_root_module_path() -> pathlib.Path:
    """Returns the folder of the `pytriton` package."""
    return PACKAGE_FOLDER.resolve()


def is_editable_install() -> bool:
    """Returns whether the package runs from a source tree instead of an installed copy."""
    try:
        distribution = importlib.metadata.distribution(_DISTRIBUTION_NAME)
    except importlib.metadata.PackageNotFoundError:
        return True
    origin = distribution.read_text("direct_url.json")
    return origin is not None and bool(json.loads(origin).get("dir_info", {}).get("editable"))
