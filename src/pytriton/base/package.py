# SPDX-License-Identifier: Apache-2.0
"""The place of this package, for processes that are started with its code."""

from __future__ import annotations

import pathlib

PACKAGE_FOLDER = pathlib.Path(__file__).parents[1]
# The entry of sys.path from which the package is imported.
IMPORT_FOLDER = str(PACKAGE_FOLDER.parent)
# The program of a worker that another Python runs, which may lack the package.
WORKER_SCRIPT = str(PACKAGE_FOLDER / "runtime" / "worker_process" / "__main__.py")
