# SPDX-License-Identifier: Apache-2.0
"""Says whether the models of a backend may be on GPUs, by the files of the packages it needs.

Without this, a model that does not say where it runs would be put on a GPU of the machine, also if
the package is the one for CPUs, and could not be loaded.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from pytriton.serving.repository.reading.backend_choice import PYTORCH, BackendCode

# Backends of ours: the package and one of its files that only its form for GPUs has. Those without
# a package do not use GPUs at all.
_GPU_FILES: dict[str, tuple[str, str] | None] = {
    "fil": None,
    "onnxruntime": ("onnxruntime", "capi/libonnxruntime_providers_cuda.so"),
    "openvino": None,
    PYTORCH: ("torch", "lib/libtorch_cuda.so"),
    "sklearn": None,
}


def package_folder(package: str) -> Path | None:
    """Returns the folder of an installed package, without importing it."""
    found = importlib.util.find_spec(package)
    return None if found is None or found.origin is None else Path(found.origin).parent


def may_use_gpus(code: BackendCode, find: Callable[[str], Path | None] = package_folder) -> bool:
    """Returns whether models that do not say where they run belong on GPUs, if there are any.

    Args:
        code: The file that runs the model.
        find: Returns the folder of an installed package.
    """
    if not code.is_ours or code.backend not in _GPU_FILES:
        return True
    needed = _GPU_FILES[code.backend]
    if needed is None:
        return False
    package, file = needed
    folder = find(package)
    return folder is not None and (folder / file).exists()
