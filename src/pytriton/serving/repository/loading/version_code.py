# SPDX-License-Identifier: Apache-2.0
"""What the kind of a version's code means for its processes: paths, modules, rules on names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.package import PACKAGE_FOLDER
from pytriton.runtime.transport.worker_frames import PACKAGE_FILE
from pytriton.serving.repository.reading.auto_complete import may_complete
from pytriton.serving.repository.reading.backend_choice import MODEL_FILE, BackendCode, CodeKind

if TYPE_CHECKING:
    from pytriton.serving.repository.loading.plans import VersionPlan

# By backend of ours. The seven processes of a test that each imported torch were ready after 39 s;
# forked by one that has imported it, after 17 s.
_PRELOADED = {"pytorch": ("torch",)}
_PRELOADED_FOR_LIBRARIES = ("pytriton.runtime.native_backend.worker",)
_FORBIDDEN_IN_NAMES = frozenset(";|&$`<>()[]{}\\\"'*?~#!")


def check_code(plan: VersionPlan, code: BackendCode) -> None:
    """Refuse code that no worker can run.

    Raises:
        ServerError: Its file is missing or has a wrong name, or an instance has a wrong name.
    """
    is_own = code.kind is CodeKind.MODEL
    if is_own and code.path.suffix != ".py":
        filename = plan.config.default_model_filename
        raise InternalError(f"Model name must end with '.py'. Model name is \"{filename}\".")
    # A rule of Triton's Python backend.
    if code.kind is not CodeKind.LIBRARY and not code.is_ours:
        for instance in plan.instances:
            if _FORBIDDEN_IN_NAMES.intersection(instance.name):
                raise InvalidArgumentError("Invalid stub name: contains invalid characters")
    if is_own and not code.path.is_file():
        raise InternalError(f"Python model file not found in '{code.path}'")


def model_directory(plan: VersionPlan, code: BackendCode) -> Path:
    """Returns what `get_model_dir` returns to the code of a backend."""
    if code.is_ours or code.kind is CodeKind.LIBRARY:
        return plan.version_directory
    # As in Triton, it is the directory of the model's file, which may be further down.
    return (plan.version_directory / (plan.config.default_model_filename or MODEL_FILE)).parent


def code_path(plan: VersionPlan, code: BackendCode) -> str:
    """Returns the path of the code, as the process of an instance finds it."""
    if not plan.on_ray:
        return str(code.path)
    path = code.path.absolute()  # processes there have another working directory
    if path.is_relative_to(PACKAGE_FOLDER):
        return f"{PACKAGE_FILE}{path.relative_to(PACKAGE_FOLDER)}"
    return str(path)


def preloaded_modules(code: BackendCode) -> tuple[str, ...]:
    """Returns the modules that are imported once for all processes that run this kind of code."""
    if code.kind is CodeKind.LIBRARY:
        return _PRELOADED_FOR_LIBRARIES
    return _PRELOADED.get(code.backend, ()) if code.is_ours else ()


def may_complete_config(code: BackendCode) -> bool:
    """Returns whether the code may complete a configuration; a library decides that itself."""
    if code.kind is CodeKind.LIBRARY:
        return True
    return may_complete(code.path.read_text(encoding="utf-8", errors="replace"))
