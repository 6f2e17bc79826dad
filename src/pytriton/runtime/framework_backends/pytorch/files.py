# SPDX-License-Identifier: Apache-2.0
"""Decides in which form a model is, and which file of its version has it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytriton.base.errors import InternalError, UnavailableError

PYTHON_RUNTIME = "model.py"
AOTI_PLATFORM = "torch_aoti"
_PACKAGE_SUFFIX = ".pt2"


class ModelForm(enum.Enum):
    """What a model of this backend is."""

    TORCHSCRIPT = "TorchScript"
    PACKAGE = "a .pt2 file"
    MODULE = "a torch.nn.Module in Python"


class PackageKind(enum.Enum):
    """What a `.pt2` file has inside."""

    COMPILED = "code that was compiled by AOTInductor"
    EXPORTED = "a program that was saved by torch.export"


def form_of(config: Mapping[str, Any]) -> ModelForm:
    """Returns the form in which a configuration says that its model is."""
    if config.get("runtime") == PYTHON_RUNTIME:
        return ModelForm.MODULE
    name = config.get("default_model_filename") or ""
    if config.get("platform") == AOTI_PLATFORM or name.endswith(_PACKAGE_SUFFIX):
        return ModelForm.PACKAGE
    return ModelForm.TORCHSCRIPT


def model_file(
    config: Mapping[str, Any],
    directory: Path,
    is_file: Callable[[Path], bool],
    capability: str = "",
) -> Path:
    """Returns the path of a TorchScript model or a package.

    Args:
        config: The model's configuration.
        directory: The folder of its version.
        is_file: Whether a path is a file.
        capability: The compute capability of the instance's GPU, as "8.0"; "" without one.

    Raises:
        UnavailableError: There is no such file.
    """
    form = form_of(config)
    default = "model.pt2" if form is ModelForm.PACKAGE else "model.pt"
    by_capability = config.get("cc_model_filenames") or {}
    name = by_capability.get(capability) or config.get("default_model_filename") or default
    path = directory / name
    if not is_file(path):
        raise UnavailableError(
            f'PyTorch inductor model file "{path}" is unreachable or inaccessible.'
            if form is ModelForm.PACKAGE
            else f"unable to find '{path}' for model instance '{config.get('name', '')}'"
        )
    return path


def module_file(
    config: Mapping[str, Any], directory: Path, is_file: Callable[[Path], bool]
) -> Path:
    """Returns the path of a module in Python, or of a TorchScript model that is run like one.

    Raises:
        InternalError: The version has none.
    """
    names = [config.get("default_model_filename") or "", "model.py", "model.pt"]
    names = [name for name in dict.fromkeys(names) if name]
    for name in names:
        if is_file(directory / name):
            return directory / name
    raise InternalError(f"No model found in {directory}/{names}")


def package_kind(members: Sequence[str]) -> PackageKind | None:
    """Returns what a `.pt2` file is; None for neither.

    Args:
        members: The paths in the archive.
    """
    # The first folder of newer archives is the name of the file.
    paths = [*members, *(member.partition("/")[2] for member in members)]
    if any(path.startswith("data/aotinductor/") for path in paths):
        return PackageKind.COMPILED
    if any(
        path == "serialized_exported_program.json"
        or (path.startswith("models/") and path.endswith(".json"))
        for path in paths
    ):
        return PackageKind.EXPORTED
    return None
