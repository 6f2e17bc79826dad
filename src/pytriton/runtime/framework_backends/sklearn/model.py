# SPDX-License-Identifier: Apache-2.0
"""Serves estimators of scikit-learn: one method of the estimator answers rows of features."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from pytriton.base.dtypes import BY_CONFIG_NAME, BYTES, from_numpy
from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.framework_backends.sklearn.estimators import (
    FILES,
    find_method,
    load_estimator,
)
from pytriton.runtime.framework_backends.tabular import (
    as_rows,
    complete_config,
    find_file,
    only_tensors,
    read_parameters,
)

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
