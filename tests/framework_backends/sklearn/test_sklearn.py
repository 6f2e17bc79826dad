# SPDX-License-Identifier: Apache-2.0
"""Estimators of scikit-learn in the backend for them, without a server."""

from __future__ import annotations

import inspect
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
)
from pytriton.runtime.framework_backends.sklearn import model as backend
from pytriton.testing import ModelHarness
from tests.framework_backends.tree_models import ROWS, THIRDS, make_model

joblib = pytest.importorskip("joblib")
ensemble = pytest.importorskip("sklearn.ensemble")
linear_model = pytest.importorskip("sklearn.linear_model")
pipeline = pytest.importorskip("sklearn.pipeline")
preprocessing = pytest.importorskip("sklearn.preprocessing")

BACKEND = inspect.getfile(backend)
ALLOWED = {"allow-pickle": "true"}
COLOURS = np.array(["red", "green", "blue"])[THIRDS]


def classifier():
    return pipeline.make_pipeline(
        preprocessing.StandardScaler(), linear_model.LogisticRegression()
    ).fit(ROWS, COLOURS)


def regressor():
    return linear_model.LinearRegression().fit(ROWS, ROWS[:, 0] * 2)


def folder_of(tmp_path, estimator, text='backend: "sklearn"', name="model.joblib"):
    return make_model(tmp_path / "m", name, lambda path: joblib.dump(estimator, path), text)


def answer(folder, settings=ALLOWED):
    with ModelHarness(BACKEND, model_directory=folder, backend_config=settings) as harness:
        return harness.execute({"input__0": ROWS}).outputs["output__0"], harness.config


def method(name):
    return f'backend: "sklearn"\nparameters {{ key: "method" value {{ string_value: "{name}" }} }}'


def test_labels_may_be_texts(tmp_path):
    estimator = classifier()

    result, completed = answer(folder_of(tmp_path, estimator))
    assert [each.decode() for each in result[:, 0]] == estimator.predict(ROWS).tolist()
    assert completed["output"][0]["data_type"] == "TYPE_STRING"


def test_another_method_can_answer(tmp_path):
    estimator = classifier()

    result, completed = answer(folder_of(tmp_path, estimator, method("predict_proba")))
    assert np.allclose(result, estimator.predict_proba(ROWS))
    assert completed["output"][0]["dims"] == [3]
    assert completed["input"][0]["dims"] == [4]


def test_several_targets_are_columns_of_a_row(tmp_path):
    """The estimator returns a list of arrays, one for each target."""
    targets = np.stack([THIRDS == 0, THIRDS == 1, ROWS[:, 0] > 0], axis=1)
    estimator = ensemble.RandomForestClassifier(3, random_state=0).fit(ROWS, targets)

    result, completed = answer(folder_of(tmp_path, estimator, method("predict_proba")))
    assert completed["output"][0]["dims"] == [3, 2]
    for index, expected in enumerate(estimator.predict_proba(ROWS)):
        assert np.array_equal(result[:, index], expected)


def test_sparse_answers_are_sent_with_their_zeros(tmp_path):
    estimator = preprocessing.OneHotEncoder(handle_unknown="ignore").fit(np.round(ROWS))

    result, completed = answer(folder_of(tmp_path, estimator, method("transform")))
    assert np.array_equal(result, estimator.transform(ROWS).toarray())
    assert completed["output"][0]["data_type"] == "TYPE_FP64"


@pytest.mark.parametrize("name", ["model.joblib", "model.pkl", "model.pickle"])
def test_regressor_answers_numbers(tmp_path, name):
    estimator = regressor()

    result, completed = answer(folder_of(tmp_path, estimator, name=name))
    assert np.allclose(result[:, 0], estimator.predict(ROWS))
    assert completed["max_batch_size"] == 32768


@pytest.mark.parametrize(
    "shapes",
    [
        "max_batch_size: 100 input {%s dims: 4} output {%s dims: 1 reshape: { shape: [] }}",
        "max_batch_size: 100 input {%s dims: 4} output {%s dims: 1}",
        "input {%s dims: [ -1, 4 ]} output {%s dims: [ -1, 1 ]}",
    ],
    ids=["reshape", "column", "no-batching"],
)
def test_configured_types_and_columns_are_kept(tmp_path, shapes):
    rows, value = 'name: "rows" data_type: TYPE_FP64', 'name: "value" data_type: TYPE_FP32'
    text = f'backend: "sklearn" {shapes % (rows, value)}'
    folder = folder_of(tmp_path, regressor(), text)

    with ModelHarness(BACKEND, model_directory=folder, backend_config=ALLOWED) as harness:
        result = harness.execute({"rows": ROWS.astype(np.float64)}).outputs["value"]
    assert (result.dtype, result.shape) == (np.float32, (80, 1))


@pytest.mark.parametrize("settings", [{}, {"allow-pickle": "false"}])
def test_pickle_is_loaded_only_with_the_flag(tmp_path, settings):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    folder = folder_of(tmp_path, Trap())

    with pytest.raises(UnsupportedError, match="--backend-config=sklearn,allow-pickle=true"):
        answer(folder, settings)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "text, expected",
    [
        (method("transform"), "Pipeline has no method 'transform'"),
        (method("__call__"), "Pipeline has no method '__call__'"),
        (
            (
                'backend: "sklearn" max_batch_size: 8'
                ' input { name: "a" data_type: TYPE_FP32 dims: 5 }'
                ' output { name: "b" data_type: TYPE_STRING dims: 1 }'
            ),
            "tensor 'a': the model expects 4 columns",
        ),
        (
            (
                'backend: "sklearn" max_batch_size: 8'
                ' input [{ name: "a" data_type: TYPE_FP32 dims: 4 },'
                ' { name: "c" data_type: TYPE_FP32 dims: 4 }]'
                ' output { name: "b" data_type: TYPE_STRING dims: 1 }'
            ),
            "configuration expects 2 inputs, model provides 1",
        ),
    ],
    ids=["method", "private", "columns", "inputs"],
)
def test_wrong_configurations_are_refused_in_words(tmp_path, text, expected):
    with pytest.raises(InvalidArgumentError) as failure:
        answer(folder_of(tmp_path, classifier(), text))
    assert expected in failure.value.message


def test_broken_file_is_refused_with_the_reason(tmp_path):
    folder = folder_of(tmp_path, None)
    (folder / "1" / "model.joblib").write_bytes(b"nonsense")

    with pytest.raises(InternalError, match=r"model\.joblib' could not be loaded: "):
        answer(folder)


def test_missing_file_is_named(tmp_path):
    folder = folder_of(tmp_path, None, name="other")

    with pytest.raises(UnavailableError, match=r"unable to find 'model\.skops' or 'model\.job"):
        answer(folder)


def test_file_of_skops_needs_no_flag(tmp_path):
    skops_io = pytest.importorskip("skops.io")
    estimator = regressor()
    folder = make_model(
        tmp_path / "m",
        "model.skops",
        lambda path: skops_io.dump(estimator, path),
        'backend: "sklearn"',
    )

    assert np.allclose(answer(folder, {})[0][:, 0], estimator.predict(ROWS))


def test_only_the_server_says_which_types_are_trusted(tmp_path, monkeypatch):
    """The author of a file may write its configuration as well."""
    asked = []

    def load(path, trusted):
        asked.append(trusted)
        return regressor()

    package = types.SimpleNamespace(load=load)
    monkeypatch.setitem(sys.modules, "skops", types.ModuleType("skops"))
    monkeypatch.setitem(sys.modules, "skops.io", package)
    text = (
        'backend: "sklearn" parameters { key: "trusted_types" value { string_value: "os.system" } }'
    )
    folder = make_model(
        tmp_path / "m", "model.skops", lambda path: Path(path).write_bytes(b""), text
    )

    answer(folder, {})
    answer(folder, {"trusted-types": "mine.Scaler, mine.Model"})
    assert asked == [[], [], *[["mine.Scaler", "mine.Model"]] * 2]
