# SPDX-License-Identifier: Apache-2.0
"""Functions to load and unload other models, to check their readiness, and to know one's place."""

from __future__ import annotations

from typing import Any

from pytriton.runtime.pb_utils.arguments import boolean, text
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.pb_utils.runtime import call_service, require_runtime

_PURPOSE = "control models"
_FILE = "file:"


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Load or reload a model; returns when it can be called.

    Args:
        model_name: The name of a model in a repository, or a new name, with `files`.
        config: A configuration as JSON text, instead of that in the repository.
        files: File contents by path (like `file:1/model.py`), instead of the repository's files.

    Raises:
        TypeError: An argument has the wrong type.
        TritonModelException: `files` is not a dict of such paths, or loading failed.
    """
    name = text(model_name, "model_name")
    call_service(
        _PURPOSE,
        "Failed to load model",
        "load_model",
        name=name,
        config=text(config, "config"),
        files=_checked_files(files, name),
    )


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model; requests that it has accepted are still answered.

    Args:
        model_name: The name of the model.
        unload_dependents: Also unload models that it calls, as ensembles do.

    Raises:
        TypeError: An argument has the wrong type.
        TritonModelException: The server does not allow models to be unloaded.
    """
    call_service(
        _PURPOSE,
        "Failed to unload model",
        "unload_model",
        name=text(model_name, "model_name"),
        unload_dependents=boolean(unload_dependents, "unload_dependents"),
    )


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Returns whether a model can be called.

    Args:
        model_name: The name of the model.
        model_version: The version; empty for the version that the server would choose.

    Raises:
        TypeError: An argument has the wrong type.
        TritonModelException: The version is not a number.
    """
    answer: bool = call_service(
        _PURPOSE,
        "Failed to check model readiness",
        "is_model_ready",
        name=text(model_name, "model_name"),
        version=text(model_version, "model_version"),
    )
    return answer


def get_model_dir() -> str:
    """Returns the directory of the model's version, where its files are.

    Raises:
        TritonModelException: No server runs the model.
    """
    return require_runtime("know the model's directory").model_directory


def get_backend_config() -> dict[str, str]:
    """Returns the server's settings of the model's backend: those of `--backend-config`.

    They are the settings of all backends and, instead of those of the same name, those of this one.
    `default-max-batch-size` is always there. This function is an extension of ours.

    Raises:
        TritonModelException: No server runs the model.
    """
    return dict(require_runtime("know the backend's settings").backend_config)


def _checked_files(files: Any, model_name: str) -> dict[str, bytes]:
    if files is None:
        return {}
    if not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and"
            f" file contents, got {type(files)}"
        )
    checked = {}
    for key, content in files.items():
        path = text(key, "a key of files")
        if not path.startswith(_FILE):
            raise TritonModelException(
                f"failed to load model '{model_name}', file paths should begin with '{_FILE}',"
                f" got '{path}'"
            )
        if not isinstance(content, bytes):
            raise TypeError(f"the content of '{path}' must be bytes, got {type(content)}")
        checked[path.removeprefix(_FILE)] = content
    return checked
