# SPDX-License-Identifier: Apache-2.0
"""Serves tree models of XGBoost, LightGBM and Treelite, configured as for Triton's FIL backend.

`Forest` gives the models of these libraries the same interface.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.shared import (
    as_rows,
    complete_config,
    explain_file,
    find_file,
    import_wheel,
    only_tensors,
    read_boolean,
    read_parameters,
)

_EXTRA = "trees"
_BACKEND = "fil"
_BINARY = 2


@dataclass
class Forest:
    """A tree model.

    Attributes:
        features: The number of its columns.
        classes: The number of its classes; 0 for a regressor.
        predict: Computes from rows the values of a regressor, the probability of the second class
            (one number a row), or the probabilities of all classes.
        targets: The number of values that a regressor has for a row.
    """

    features: int
    classes: int
    predict: Callable[[NDArray[Any]], NDArray[Any]]
    targets: int = 1

    @property
    def columns(self) -> int:
        """The number of values that `predict` computes for a row."""
        return self.classes if self.classes > _BINARY else self.targets


def load_forest(path: Path, model_type: str) -> Forest:
    """Load a file of one of the types in `FILES`.

    Raises:
        UnavailableError: The library for this type is not installed.
        InternalError: The library could not load the file.
    """
    library, load = _LOADERS[model_type]
    module = import_wheel(library, _EXTRA, _BACKEND)
    try:
        forest = load(module, path)
    except Exception as error:
        reason = str(error).split("\nStack trace:", maxsplit=1)[0].strip()
        raise InternalError(
            f"{library} could not load '{path}': {reason}{explain_file(path)}"
        ) from error
    if forest.classes == _BINARY:
        forest.predict = _second_class(forest.predict)
    return forest


def _second_class(
    predict: Callable[[NDArray[Any]], NDArray[Any]],
) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Returns one number a row, also for models that have two classes as others have more."""

    def predict_second(rows: NDArray[Any]) -> NDArray[Any]:
        scores = predict(rows)
        return scores if scores.ndim == 1 else scores[:, 1]

    return predict_second


def _load_xgboost(xgboost: Any, path: Path) -> Forest:
    # From memory, because the library guesses the format of a file by its name.
    booster = xgboost.Booster(model_file=bytearray(path.read_bytes()))
    learner = json.loads(booster.save_config())["learner"]
    objective = learner["objective"]["name"]
    sizes = learner["learner_model_param"]
    classes, targets = int(sizes["num_class"]), int(sizes.get("num_target", 1))

    def margins(rows: NDArray[Any]) -> NDArray[Any]:
        result: NDArray[Any] = booster.inplace_predict(rows, predict_type="margin")
        return result

    if objective.startswith("binary:"):
        if targets > 1:
            raise InvalidArgumentError(f"expected a classifier with one target, got {targets}")
        return Forest(booster.num_features(), _BINARY, booster.inplace_predict)
    if objective.startswith("multi:"):
        return Forest(booster.num_features(), classes, lambda rows: _softmax(margins(rows)))
    return Forest(booster.num_features(), 0, booster.inplace_predict, targets)


def _load_lightgbm(lightgbm: Any, path: Path) -> Forest:
    booster = lightgbm.Booster(model_file=str(path))
    objective = str(booster.params.get("objective", ""))
    classes = int(booster.num_model_per_iteration())
    if objective == "binary":
        classes = _BINARY
    elif not objective.startswith("multiclass"):
        classes = 0
    return Forest(booster.num_feature(), classes, booster.predict)


def _load_treelite(treelite: Any, path: Path) -> Forest:
    model = treelite.Model.deserialize(str(path))
    header = model.get_header_accessor()
    task, classes = int(header.get_field("task_type")[0]), int(header.get_field("num_class")[0])
    if task not in _TREELITE_TASKS or len(header.get_field("num_class")) != 1:
        raise InvalidArgumentError(
            f"expected a classifier or a regressor with one target, got task type {task}"
        )

    def predict(rows: NDArray[Any]) -> NDArray[Any]:
        result: NDArray[Any] = treelite.gtil.predict(model, rows)[:, 0, :]
        return result[:, 0] if result.shape[1] == 1 else result

    is_binary = task == _TREELITE_BINARY
    if is_binary or task == _TREELITE_MULTI:
        return Forest(model.num_feature, _BINARY if is_binary else classes, predict)
    return Forest(model.num_feature, 0, predict)


_TREELITE_BINARY, _TREELITE_REGRESSOR, _TREELITE_MULTI = 0, 1, 2
_TREELITE_TASKS = (_TREELITE_BINARY, _TREELITE_REGRESSOR, _TREELITE_MULTI)
_LOADERS: dict[str, tuple[str, Callable[[Any, Path], Forest]]] = {
    "xgboost_ubj": ("xgboost", _load_xgboost),
    "xgboost_json": ("xgboost", _load_xgboost),
    "xgboost": ("xgboost", _load_xgboost),
    "lightgbm": ("lightgbm", _load_lightgbm),
    "treelite_checkpoint": ("treelite", _load_treelite),
}
# The usual name of a file of each type.
FILES = {
    "xgboost_ubj": "xgboost.ubj",
    "xgboost_json": "xgboost.json",
    "xgboost": "xgboost.model",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}


def _softmax(margins: NDArray[Any]) -> NDArray[Any]:
    powers = np.exp(margins - margins.max(axis=1, keepdims=True))
    result: NDArray[Any] = powers / powers.sum(axis=1, keepdims=True)
    return result


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
    if model_type is None:  # the files in the folder decide
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
