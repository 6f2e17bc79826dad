# SPDX-License-Identifier: Apache-2.0
"""Loads estimators of scikit-learn and of libraries with the same methods.

Pickles, with which estimators are usually saved, are programs: loading one runs it. So they are
loaded only if the server's operator has said that the repository is trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.runtime.framework_backends.shared import import_wheel

FILES = ("model.skops", "model.joblib", "model.pkl", "model.pickle")
# Settings of the server. They are not parameters of models: whoever writes a model's file may write
# its configuration, too.
ALLOW_PICKLE = "allow-pickle"
TRUSTED_TYPES = "trusted-types"
_EXTRA = "trees"
_BACKEND = "sklearn"


def load_estimator(path: Path, settings: Mapping[str, str]) -> Any:
    """Load an estimator.

    Args:
        path: Its file. One that ends in `.skops` is no pickle and runs nothing, but for functions
            among the types that the server's operator trusts.
        settings: Those of the server for this backend.

    Raises:
        UnsupportedError: It is a pickle, and those are not allowed.
        UnavailableError: The library is not installed.
        InternalError: The file could not be loaded.
    """
    if path.suffix == ".skops":
        library = import_wheel("skops.io", _EXTRA, _BACKEND)
    else:
        _check_allowed(path, settings)
        library = import_wheel("joblib", _EXTRA, _BACKEND)
    try:
        if path.suffix == ".skops":
            trusted = (each.strip() for each in settings.get(TRUSTED_TYPES, "").split(","))
            return library.load(path, trusted=[each for each in trusted if each])
        return library.load(path)  # a pickle; see `_check_allowed`
    except Exception as error:
        raise InternalError(
            f"'{path}' could not be loaded: {type(error).__name__}: {error}"
        ) from error


def _check_allowed(path: Path, settings: Mapping[str, str]) -> None:
    if settings.get(ALLOW_PICKLE, "").lower() not in ("true", "1"):
        raise UnsupportedError(
            f"'{path}' is a pickle, and loading it would run whatever code is in it. If you trust"
            f" everybody who can write to the repository, start the server with"
            f" --backend-config={_BACKEND},{ALLOW_PICKLE}=true; a file of skops ('model.skops')"
            " needs no such trust"
        )


def find_method(estimator: Any, name: str) -> Any:
    """Returns the method that answers requests, such as `predict`.

    Raises:
        InvalidArgumentError: The estimator has no such method.
    """
    method = None if name.startswith("_") else getattr(estimator, name, None)
    if not callable(method):
        raise InvalidArgumentError(f"{type(estimator).__name__} has no method '{name}'")
    return method
