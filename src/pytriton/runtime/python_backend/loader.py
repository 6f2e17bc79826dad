# SPDX-License-Identifier: Apache-2.0
"""Finds a model's file, on the server's machine or another, and imports it as `<version>.model`."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InternalError
from pytriton.base.package import IMPORT_FOLDER, PACKAGE_FOLDER
from pytriton.runtime.backend.failure_text import RuleError
from pytriton.runtime.transport.frames import PACKAGE_FILE, Initialize

if TYPE_CHECKING:
    from types import CodeType, ModuleType

CLASS_NAME = "TritonPythonModel"


class ModelFileError(RuleError):
    """The file is not a model; the text says why."""


def load_class(path: str, package: str) -> type[Any]:
    """Import a file and return its model class.

    `package` is the version, which is the name of the file's folder. It is empty for the code of a
    backend, which is imported as a top-level module.

    Raises:
        LoadError: The file does not exist, or is not a Python file.
        AttributeError: The file has no class of that name.
        Exception: Any exception that the file raises.
    """
    file = Path(path)
    if file.suffix != ".py":
        raise ModelFileError(f"Model name must end with '.py'. Model name is \"{file.name}\".")
    if not file.is_file():
        raise ModelFileError(f"Python model file not found in '{path}'")
    name, directory = file.stem, str(file.parent)
    if package:
        parent = str(file.parent.parent)
        sys.path += [directory, parent, IMPORT_FOLDER]
        _import_package(package, parent)
        name = f"{package}.{name}"
    else:
        sys.path += [directory, IMPORT_FOLDER]
    model_class: type[Any] = getattr(_import_file(name, path), CLASS_NAME)
    return model_class


def _import_package(name: str, parent: str) -> None:
    """Import the version's folder as a package, so that the file can `from . import helper`."""
    spec = PathFinder.find_spec(name, [parent])
    if spec is None:
        raise ModelFileError(f"expected the version '{name}' to be a folder in '{parent}'")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if spec.loader is not None:
        spec.loader.exec_module(module)


class _ModelFile(SourceFileLoader):
    """Compiles a file whenever it is loaded, and leaves no compiled file beside it.

    Python takes a compiled file for that of any source with the same size and the same second of
    change. So a model that is written and loaded twice in a second could run as it was before.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _import_file(name: str, path: str) -> ModuleType:
    loader = _ModelFile(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


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
