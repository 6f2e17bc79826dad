# SPDX-License-Identifier: Apache-2.0
"""Serves estimators of scikit-learn: one method of the estimator answers rows of features.

Pickles, with which estimators are usually saved, are programs: loading one runs it. So they are
loaded only if the server's operator has said that the repository is trusted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from pytriton.base.dtypes import BY_CONFIG_NAME, BYTES, from_numpy
from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.runtime.framework_backends.shared import (
    as_rows,
    complete_config,
    find_file,
    import_wheel,
    only_tensors,
    read_parameters,
)

FILES = ("model.skops", "model.joblib", "model.pkl", "model.pickle")
# Settings of the server. They are not parameters of models: an attacker who can write a model's
# file can also write its configuration.
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


_METHOD = "method"


class TritonPythonModel:
    """An instance of an estimator."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Ask the estimator for an answer to a row of zeros, and fill in what comes."""
        config = auto_complete_model_config.as_dict()
        if not config.get("input") or not config.get("output"):
            features, method = _load(config)
            if features == -1:
                raise InvalidArgumentError(
                    f"unable to autofill for '{config['name']}': the estimator does not say how"
                    " many columns it takes, so its input and output have to be configured"
                )
            sample = _as_array(method(np.zeros((1, features), np.float32)))
            datatype = from_numpy(sample.dtype)
            name = BYTES.config_name if datatype is None else datatype.config_name
            complete_config(config, features, "TYPE_FP32", name, list(sample.shape[1:]))
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Load the estimator, and check that the configuration fits it."""
        config = json.loads(args["model_config"])
        features, self._method = _load(config)
        self._input, output = only_tensors(config, features)
        self._output = output["name"]
        self._datatype = BY_CONFIG_NAME[output["data_type"]]
        dims = output["reshape"].get("shape", ()) if "reshape" in output else output["dims"]
        # Most estimators answer a row with a number, which is one column for most people.
        self._rank = len(dims) + (config.get("max_batch_size", 0) > 0)

    def execute_batch(self, batch: Any) -> dict[str, Any]:
        """Call the estimator once for all rows."""
        array = batch.inputs[self._input]
        result = self._as_configured(_as_array(self._method(as_rows(array))))
        if array.ndim > 1 and result.ndim == 1 and self._rank == 2:
            result = result[:, np.newaxis]
        return {self._output: result if array.ndim > 1 else np.atleast_1d(result[0])}

    def _as_configured(self, result: NDArray[Any]) -> NDArray[Any]:
        """Returns an answer in the configured type; labels may be numbers or texts."""
        if self._datatype is not BYTES:
            return result.astype(self._datatype.numpy, copy=False)
        return result if result.dtype.kind == "S" else result.astype(np.str_)


def _as_array(result: Any) -> NDArray[Any]:
    """Returns an answer with a row for each row that was asked."""
    if isinstance(result, list):  # an array for each target
        return np.stack(result, axis=1)
    return np.asarray(result.toarray() if hasattr(result, "toarray") else result)  # sparse or not


def _load(config: dict[str, Any]) -> tuple[int, Any]:
    """Returns the number of columns, -1 if it is not known, and the method to call."""
    parameters = read_parameters(config)
    path = find_file(config, pb_utils.get_model_dir(), FILES)
    estimator = load_estimator(path, pb_utils.get_backend_config())
    method = find_method(estimator, parameters.get(_METHOD, "predict"))
    return int(getattr(estimator, "n_features_in_", -1)), method
