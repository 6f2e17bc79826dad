# SPDX-License-Identifier: Apache-2.0
"""Serves tree models of XGBoost, LightGBM and Treelite, configured as for Triton's FIL backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.framework_backends.fil.forests import FILES, Forest, load_forest
from pytriton.runtime.framework_backends.tabular import (
    as_rows,
    complete_config,
    find_file,
    only_tensors,
    read_boolean,
    read_parameters,
)


class TritonPythonModel:
    """An instance of a tree model."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fill in the number of columns, and what is returned for a row."""
        config = auto_complete_model_config.as_dict()
        if not config.get("input") or not config.get("output"):
            parameters = read_parameters(config)
            forest = _load(config, parameters)
            width = [_width(parameters, forest)]
            complete_config(config, forest.features, "TYPE_FP32", "TYPE_FP32", width)
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model, and check that the configuration fits it."""
        config = json.loads(args["model_config"])
        parameters = read_parameters(config)
        self._forest = forest = _load(config, parameters)
        self._input, output = only_tensors(config, forest.features)
        self._output = output["name"]
        self._width = int(output["dims"][-1])
        self._threshold = _read_threshold(parameters)
        self._wants_probabilities = bool(read_boolean(parameters, "predict_proba"))
        self._wants_class = _wants_class(parameters, forest)

    def execute_batch(self, batch: Any) -> dict[str, Any]:
        """Run all rows of a batch at once."""
        array = batch.inputs[self._input]
        if not array.size:  # most libraries refuse to predict nothing
            return {self._output: np.empty((0, max(self._width, 1)), np.float32)}
        scores = self._forest.predict(as_rows(array))
        if self._wants_probabilities:
            result = self._probabilities(scores)
        elif self._wants_class:
            result = self._classes(scores)
        else:
            result = scores
        rows = result.astype(np.float32, copy=False).reshape(len(scores), -1)
        return {self._output: rows if array.ndim > 1 else rows[0]}

    def _probabilities(self, scores: NDArray[Any]) -> NDArray[Any]:
        # Two columns for two classes, unless the configuration wants the second one only.
        if scores.ndim == 1 and self._width != 1:
            return np.stack([1 - scores, scores], axis=1)
        return scores

    def _classes(self, scores: NDArray[Any]) -> NDArray[Any]:
        if scores.ndim == 1:
            return scores > self._threshold
        result: NDArray[Any] = scores.argmax(axis=1)
        return result


def _width(parameters: dict[str, str], forest: Forest) -> int:
    """Returns the number of columns of the answer."""
    if read_boolean(parameters, "predict_proba"):
        return forest.classes
    return 1 if _wants_class(parameters, forest) else forest.columns


def _wants_class(parameters: dict[str, str], forest: Forest) -> bool:
    """Returns whether the class is returned; the model decides if nothing is configured."""
    for name in ("is_classifier", "output_class"):  # newer and older name
        configured = read_boolean(parameters, name)
        if configured is not None:
            return configured and forest.classes > 0
    return forest.classes > 0


def _read_threshold(parameters: dict[str, str]) -> float:
    text = parameters.get("threshold", "0.5")
    try:
        return float(text)
    except ValueError as error:
        raise InvalidArgumentError(
            f"expected a number as parameter 'threshold', got '{text}'"
        ) from error


def _load(config: dict[str, Any], parameters: dict[str, str]) -> Forest:
    directory = pb_utils.get_model_dir()
    model_type = parameters.get("model_type")
    if model_type is None:  # what lies in the folder decides
        found = find_file(config, directory, FILES.values())
        model_type = _type_of(found)
    if model_type not in FILES:
        raise InvalidArgumentError(
            f"expected one of {', '.join(FILES)} as parameter 'model_type', got '{model_type}'"
        )
    forest = load_forest(find_file(config, directory, [FILES[model_type]]), model_type)
    if read_boolean(parameters, "predict_proba") and not forest.classes:
        raise InvalidArgumentError(
            f"model '{config['name']}' is a regressor: it has no classes for predict_proba"
        )
    return forest


def _type_of(path: Path) -> str:
    """Returns the type of a file whose type is not configured, by its name."""
    for model_type, name in FILES.items():
        if path.suffix == Path(name).suffix:
            return model_type
    raise InvalidArgumentError(
        f"the parameter 'model_type' has to say what '{path.name}' is: one of {', '.join(FILES)}"
    )
