# SPDX-License-Identifier: Apache-2.0
"""Loads tree models of several libraries, and gives all of them the same face."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.shared import explain_file, import_wheel

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
