# SPDX-License-Identifier: Apache-2.0
"""Tree models in the backend for them, without a server."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError, UnavailableError
from pytriton.runtime.framework_backends.fil import model as backend
from pytriton.testing import ModelHarness
from tests.framework_backends.tree_models import (
    CLASSES,
    ROWS,
    TARGETS,
    lightgbm_model,
    make_model,
    xgboost_model,
)

BACKEND = inspect.getfile(backend)


def parameter(key, value):
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'


def config(*parameters, tensors=""):
    return 'backend: "fil"\n' + tensors + "".join(parameters)


def tensors(columns, width):
    return (
        f'max_batch_size: 128\ninput {{ name: "input__0" data_type: TYPE_FP32 dims: {columns} }}\n'
        f'output {{ name: "output__0" data_type: TYPE_FP32 dims: {width} }}\n'
    )


def write_nonsense(path):
    Path(path).write_text("nonsense")


def answer(folder, **options):
    with ModelHarness(BACKEND, model_directory=folder, **options) as harness:
        return harness.execute({"input__0": ROWS}).outputs["output__0"], harness.config


@pytest.mark.parametrize("kind", ["binary", "multi", "regression"])
@pytest.mark.parametrize(
    "library, name",
    [
        (xgboost_model, "xgboost.ubj"),
        (xgboost_model, "xgboost.json"),
        (lightgbm_model, "model.txt"),
    ],
    ids=["ubj", "json", "lightgbm"],
)
def test_model_without_configuration_answers_classes_or_values(tmp_path, library, name, kind):
    booster = library(kind)
    folder = make_model(tmp_path / "m", name, booster.save_model, config())

    result, completed = answer(folder)
    assert result.dtype == np.float32
    assert result.shape == (80, 1)
    if kind == "regression":
        assert np.corrcoef(result[:, 0], TARGETS[kind])[0, 1] > 0.9
    else:
        assert np.mean(result[:, 0] == TARGETS[kind]) > 0.9
    assert completed["max_batch_size"] == 32768
    assert "dynamic_batching" in completed
    assert [completed["input"][0]["dims"], completed["output"][0]["dims"]] == [[4], [1]]


@pytest.mark.parametrize("kind", ["binary", "multi"])
@pytest.mark.parametrize("library", [xgboost_model, lightgbm_model], ids=["xgboost", "lightgbm"])
def test_probabilities_have_a_column_for_each_class(tmp_path, library, kind):
    name = "xgboost.ubj" if library is xgboost_model else "model.txt"
    wanted = config(parameter("predict_proba", "true"))
    folder = make_model(tmp_path / "m", name, library(kind).save_model, wanted)

    result, completed = answer(folder)
    assert completed["output"][0]["dims"] == [CLASSES[kind]]
    assert np.allclose(result.sum(axis=1), 1, atol=1e-5)
    assert np.mean(result.argmax(axis=1) == TARGETS[kind]) > 0.9


def two_classes(name):
    """A model with two classes, of an objective for more."""
    if name == "model.txt":
        lightgbm = pytest.importorskip("lightgbm")
        data = lightgbm.Dataset(ROWS, TARGETS["binary"])
        settings = {"objective": "multiclass", "num_class": 2, "verbose": -1, "num_threads": 1}
        return lightgbm.train(settings, data, 3)
    xgboost = pytest.importorskip("xgboost")
    settings = {"objective": "multi:softprob", "num_class": 2, "nthread": 1}
    return xgboost.train(settings, xgboost.DMatrix(ROWS, TARGETS["binary"]), 3)


@pytest.mark.parametrize("name", ["xgboost.ubj", "model.txt"])
@pytest.mark.parametrize(
    "parameters, shapes, width",
    [
        (("output_class", "true"), "", 1),
        (("output_class", "false"), "", 1),
        (("predict_proba", "true"), "", 2),
        (("predict_proba", "true"), tensors(4, 1), 1),
    ],
    ids=["class", "score", "probabilities", "probability"],
)
def test_two_classes_are_the_same_whatever_the_objective(tmp_path, name, parameters, shapes, width):
    booster = two_classes(name)
    text = config(parameter(*parameters), tensors=shapes)
    folder = make_model(tmp_path / "m", name, booster.save_model, text)

    result, completed = answer(folder)
    assert completed["output"][0]["dims"] == [width]
    assert result.shape == (80, width)
    assert np.mean((result[:, -1] > 0.5) == TARGETS["binary"]) > 0.9


def test_classifier_with_several_targets_is_refused(tmp_path):
    xgboost = pytest.importorskip("xgboost")
    labels = np.stack([TARGETS["binary"], 1 - TARGETS["binary"]], axis=1)
    settings = {"objective": "binary:logistic", "nthread": 1}
    booster = xgboost.train(settings, xgboost.DMatrix(ROWS, labels), 2)
    folder = make_model(tmp_path / "m", "xgboost.ubj", booster.save_model, config())

    with pytest.raises(InternalError, match="expected a classifier with one target, got 2"):
        answer(folder)


@pytest.mark.parametrize("name", ["xgboost.ubj", "model.txt"])
def test_no_rows_have_no_answers(tmp_path, name):
    booster = xgboost_model("multi") if name == "xgboost.ubj" else lightgbm_model("multi")
    shapes = tensors("[ -1, 4 ]", "[ -1, 1 ]").replace("max_batch_size: 128", "")
    folder = make_model(tmp_path / "m", name, booster.save_model, config(tensors=shapes))

    with ModelHarness(BACKEND, model_directory=folder) as harness:
        result = harness.execute({"input__0": ROWS[:0]}).outputs["output__0"]
    assert result.shape == (0, 1)


def test_probabilities_are_those_of_the_library(tmp_path):
    booster = xgboost_model("binary")
    folder = make_model(
        tmp_path / "m",
        "xgboost.json",
        booster.save_model,
        config(parameter("predict_proba", "true"), tensors=tensors(4, 1)),
    )

    result, _ = answer(folder)
    assert result.shape == (80, 1)  # one column is configured: the probability of the second class
    assert np.allclose(result[:, 0], booster.inplace_predict(ROWS), atol=1e-6)


@pytest.mark.parametrize("objective", ["binary:logitraw", "binary:hinge"])
def test_score_is_that_of_the_library_for_every_objective(tmp_path, objective):
    xgboost = pytest.importorskip("xgboost")
    data = xgboost.DMatrix(ROWS, TARGETS["binary"])
    booster = xgboost.train({"objective": objective, "nthread": 1}, data, 3)
    wanted = config(parameter("output_class", "false"))
    folder = make_model(tmp_path / "m", "xgboost.ubj", booster.save_model, wanted)

    assert np.allclose(answer(folder)[0][:, 0], booster.inplace_predict(ROWS), atol=1e-6)


@pytest.mark.parametrize("name", ["output_class", "is_classifier"])
def test_score_is_returned_if_no_class_is_wanted(tmp_path, name):
    booster = xgboost_model("binary")
    wanted = config(parameter(name, "false"))
    folder = make_model(tmp_path / "m", "xgboost.ubj", booster.save_model, wanted)

    assert np.allclose(answer(folder)[0][:, 0], booster.inplace_predict(ROWS), atol=1e-6)


def test_scores_of_all_classes_are_returned_if_no_class_is_wanted(tmp_path):
    booster = lightgbm_model("multi")
    wanted = config(parameter("output_class", "false"))
    folder = make_model(tmp_path / "m", "model.txt", booster.save_model, wanted)

    result, completed = answer(folder)
    assert completed["output"][0]["dims"] == [3]
    assert np.allclose(result, booster.predict(ROWS), atol=1e-6)


def test_regressor_may_have_several_targets(tmp_path):
    xgboost = pytest.importorskip("xgboost")
    data = xgboost.DMatrix(ROWS, ROWS[:, :2])
    booster = xgboost.train({"max_depth": 2, "nthread": 1}, data, 2)
    folder = make_model(tmp_path / "m", "xgboost.ubj", booster.save_model, config())

    result, completed = answer(folder)
    assert completed["output"][0]["dims"] == [2]
    assert np.allclose(result, booster.inplace_predict(ROWS), atol=1e-6)


def test_threshold_moves_the_decision(tmp_path):
    booster = xgboost_model("binary")
    save = booster.save_model
    wanted = config(parameter("threshold", "0.9"), parameter("output_class", "true"))
    folder = make_model(tmp_path / "m", "xgboost.ubj", save, wanted)

    expected = booster.inplace_predict(ROWS) > 0.9
    assert answer(folder)[0][:, 0].tolist() == expected.tolist()


def test_file_may_have_another_name(tmp_path):
    booster = xgboost_model("regression")
    wanted = config(parameter("model_type", "xgboost"), parameter("storage_type", "SPARSE"))
    folder = make_model(
        tmp_path / "m",
        "trees.bin",
        lambda path: Path(path).write_bytes(booster.save_raw("ubj")),
        'default_model_filename: "trees.bin"\n' + wanted,
    )

    assert np.allclose(answer(folder)[0][:, 0], booster.inplace_predict(ROWS), atol=1e-6)


def test_single_row_without_batch_dimension(tmp_path):
    booster = xgboost_model("regression")
    shapes = tensors(4, 1).replace("max_batch_size: 128", "")
    folder = make_model(tmp_path / "m", "xgboost.ubj", booster.save_model, config(tensors=shapes))

    with ModelHarness(BACKEND, model_directory=folder) as harness:
        result = harness.execute({"input__0": ROWS[0]}).outputs["output__0"]
    assert np.allclose(result, booster.inplace_predict(ROWS[:1]), atol=1e-6)


@pytest.mark.parametrize(
    "text, kind, expected",
    [
        (
            config(tensors=tensors(5, 1)),
            InvalidArgumentError,
            "the model expects 4 columns, but the model configuration specifies shape [5]",
        ),
        (
            config(tensors=tensors(4, 1).replace("dims: 4", "dims: 4 optional: true")),
            InvalidArgumentError,
            "'optional' is set to true for input 'input__0' while",
        ),
        (
            config(parameter("model_type", "catboost")),
            InvalidArgumentError,
            "expected one of xgboost_ubj, xgboost_json, xgboost, lightgbm, treelite_checkpoint",
        ),
        (
            config(parameter("predict_proba", "perhaps")),
            InvalidArgumentError,
            "expected 'true' or 'false' as parameter 'predict_proba', got 'perhaps'",
        ),
        (
            config(parameter("threshold", "high")),
            InvalidArgumentError,
            "expected a number as parameter 'threshold', got 'high'",
        ),
        (
            config(parameter("model_type", "lightgbm")),
            UnavailableError,
            "unable to find 'model.txt' in '",
        ),
        (
            config(parameter("predict_proba", "true")),
            InvalidArgumentError,
            "is a regressor: it has no classes for predict_proba",
        ),
    ],
    ids=["columns", "optional", "type", "boolean", "number", "file", "regressor"],
)
def test_wrong_configurations_are_refused_in_words(tmp_path, text, kind, expected):
    save = xgboost_model("regression").save_model
    folder = make_model(tmp_path / "m", "xgboost.json", save, text)

    with pytest.raises(kind) as failure:
        answer(folder)
    assert expected in failure.value.message


def test_broken_file_is_refused_with_the_reason(tmp_path):
    pytest.importorskip("xgboost")

    folder = make_model(tmp_path / "m", "xgboost.json", write_nonsense, config())

    with pytest.raises(InternalError, match=r"could not load '.*xgboost.json': ") as failure:
        answer(folder)
    assert "Stack trace" not in failure.value.message


def test_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    folder = make_model(tmp_path / "m", "model.txt", write_nonsense, config())

    with pytest.raises(UnavailableError, match=r"needs lightgbm: pip install 'pytriton\[trees\]'"):
        answer(folder)


def test_checkpoint_of_treelite_answers_as_its_estimator(tmp_path):
    treelite = pytest.importorskip("treelite")
    ensemble = pytest.importorskip("sklearn.ensemble")
    forest = ensemble.RandomForestClassifier(4, max_depth=3, random_state=0)
    forest.fit(ROWS, TARGETS["multi"])
    save = treelite.sklearn.import_model(forest).serialize
    wanted = config(parameter("predict_proba", "true"))
    folder = make_model(tmp_path / "m", "checkpoint.tl", save, wanted)

    assert np.allclose(answer(folder)[0], forest.predict_proba(ROWS), atol=1e-5)
