# SPDX-License-Identifier: Apache-2.0
"""Models of tree libraries, scikit-learn and OpenVINO, served over both protocols."""

from __future__ import annotations

import concurrent.futures

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.framework_backends.tree_models import ROWS, THIRDS, make_model, xgboost_model
from tests.repository_e2e.server_process import ServerProcess

joblib = pytest.importorskip("joblib")
openvino = pytest.importorskip("openvino")
linear_model = pytest.importorskip("sklearn.linear_model")

COLOURS = np.array(["red", "green", "blue"])[THIRDS]
FLAGS = (
    "--model-control-mode=explicit",
    "--load-model=*",
    "--backend-config=sklearn,allow-pickle=true",
)


@pytest.fixture(scope="module")
def colours():
    return linear_model.LogisticRegression().fit(ROWS, COLOURS)


@pytest.fixture(scope="module")
def server(tmp_path_factory, colours):
    folder = tmp_path_factory.mktemp("tabular")
    models = folder / "models"
    trees = xgboost_model("multi")
    make_model(models / "trees", "xgboost.ubj", trees.save_model, 'backend: "fil"')
    save = lambda path: joblib.dump(colours, path)  # noqa: E731
    # Models of Triton's Python backend could not have such a name.
    text = 'backend: "sklearn" instance_group { name: "group (1)" }'
    make_model(models / "colours", "model.joblib", save, text)
    save = lambda path: openvino.save_model(_negative(), path)  # noqa: E731
    make_model(models / "negative", "model.xml", save, 'backend: "openvino"')
    with ServerProcess(folder, [models], FLAGS) as process:
        yield process.await_ready()


def _negative():
    opset = openvino.opset13
    x = opset.parameter(openvino.PartialShape([-1, 4]), np.float32, "x")
    y = opset.negative(x)
    x.output(0).get_tensor().set_names({"x"})
    y.output(0).get_tensor().set_names({"y"})
    return openvino.Model([y], [x], "negative")


def ask(server, protocol, model, rows, names):
    """Send rows over HTTP or gRPC; what comes back."""
    package = triton_http if protocol == "http" else triton_grpc
    tensor = package.InferInput(names[0], rows.shape, "FP32")
    tensor.set_data_from_numpy(rows)
    connect = server.http_client if protocol == "http" else server.grpc_client
    with connect() as client:
        return client.infer(model, [tensor]).as_numpy(names[1])


USUAL = ("input__0", "output__0")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_models_of_all_libraries_answer(server, colours, protocol):
    classes = ask(server, protocol, "trees", ROWS, USUAL)
    labels = ask(server, protocol, "colours", ROWS, USUAL)
    negative = ask(server, protocol, "negative", ROWS[:2], ("x", "y"))

    assert classes[:, 0].tolist() == xgboost_model("multi").inplace_predict(ROWS).tolist()
    assert [each.decode() for each in labels[:, 0]] == colours.predict(ROWS).tolist()
    assert negative.tolist() == (-ROWS[:2]).tolist()


def test_requests_of_many_clients_keep_their_rows(server):
    expected = xgboost_model("multi").inplace_predict(ROWS).tolist()
    parts = [(start, start + 1 + start % 3) for start in range(60)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda part: ask(server, "http", "trees", ROWS[slice(*part)], USUAL)[:, 0].tolist(),
                parts,
            )
        )

    assert answers == [expected[start:end] for start, end in parts]


def test_metadata_has_what_the_file_says(server):
    metadata = server.get("/v2/models/trees").json

    assert metadata["platform"] == "fil"
    assert metadata["inputs"] == [{"name": "input__0", "datatype": "FP32", "shape": [-1, 4]}]
    assert metadata["outputs"] == [{"name": "output__0", "datatype": "FP32", "shape": [-1, 1]}]


def test_wrong_configuration_is_refused_with_its_reason(server):
    config = (
        '{"backend": "fil", "max_batch_size": 8,'
        ' "input": [{"name": "input__0", "data_type": "TYPE_FP32", "dims": [5]}],'
        ' "output": [{"name": "output__0", "data_type": "TYPE_FP32", "dims": [1]}]}'
    )
    answer = server.load("trees", config=config)

    assert answer.status == 400
    assert answer.error == (
        "load failed for model 'trees': version 1 is at UNAVAILABLE state: Invalid argument: model"
        " 'trees', tensor 'input__0': the model expects 4 columns, but the model configuration"
        " specifies shape [5];\n"
    )
    assert ask(server, "http", "trees", ROWS[:1], USUAL).shape == (1, 1)
