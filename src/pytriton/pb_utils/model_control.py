# SPDX-License-Identifier: Apache-2.0
"""Loading and unloading other models, and asking for them."""

from __future__ import annotations

from typing import Any

from pytriton.pb_utils.arguments import text, truth
from pytriton.pb_utils.failures import TritonModelException
from pytriton.pb_utils.runtime import ask_server, require_runtime

_PURPOSE = "control models"
_FILE = "file:"


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Load a model, or load it anew; returns when it can be called.

    Args:
        model_name: of the model, in one of the server's repositories or named anew by `files`.
        config: its configuration as JSON text, in place of the repository's.
        files: contents by paths such as `file:1/model.py`, in place of the repository's files.

    Raises:
        TypeError: an argument has the wrong type.
        TritonModelException: `files` is no dict of such paths, or the model could not be loaded.
    """
    name = text(model_name, "model_name")
    ask_server(
        _PURPOSE,
        "Failed to load model",
        "load_model",
        name=name,
        config=text(config, "config"),
        files=_checked_files(files, name),
    )


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model; requests that it has already are still answered.

    Args:
        model_name: of the model.
        unload_dependents: also unload models that it calls, as ensembles do.

    Raises:
        TypeError: an argument has the wrong type.
        TritonModelException: the server does not let models be unloaded.
    """
    ask_server(
        _PURPOSE,
        "Failed to unload model",
        "unload_model",
        name=text(model_name, "model_name"),
        unload_dependents=truth(unload_dependents, "unload_dependents"),
    )


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model can be called.

    Args:
        model_name: of the model.
        model_version: which of its versions; empty for whichever the server would take.

    Raises:
        TypeError: an argument has the wrong type.
        TritonModelException: the version is no number.
    """
    answer: bool = ask_server(
        _PURPOSE,
        "Failed to check model readiness",
        "is_model_ready",
        name=text(model_name, "model_name"),
        version=text(model_version, "model_version"),
    )
    return answer


def get_model_dir() -> str:
    """The directory that the model's file is in: that of its version.

    Raises:
        TritonModelException: no server runs the model.
    """
    return require_runtime("know the model's directory").model_directory


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
