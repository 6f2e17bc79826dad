# SPDX-License-Identifier: Apache-2.0
"""Models in the backend for OpenVINO, without a server."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError, UnavailableError
from pytriton.runtime.framework_backends.openvino import model as backend
from pytriton.testing import ModelHarness, Request
from tests.framework_backends.tree_models import make_model

openvino = pytest.importorskip("openvino")
opset = openvino.opset13

BACKEND = inspect.getfile(backend)
X = np.array([[1, 2, 3]], np.float32)


def sums(shape=(-1, 3), *, keep_dims=True):
    """A model with two inputs: their sum, and the largest column of the first."""
    a = opset.parameter(openvino.PartialShape(list(shape)), np.float32, "a")
    b = opset.parameter(openvino.PartialShape(list(shape)), np.float32, "b")
    total = opset.add(a, b)
    largest = opset.reduce_max(a, np.array([1], np.int64), keep_dims=keep_dims)
    for node, name in ((a, "a"), (b, "b"), (total, "total"), (largest, "largest")):
        node.output(0).get_tensor().set_names({name})
    return openvino.Model([total, largest], [a, b], "sums")


def folder_of(tmp_path, model, text='backend: "openvino"'):
    return make_model(
        tmp_path / "m", "model.xml", lambda path: openvino.save_model(model, path), text
    )


def test_model_without_configuration_is_batched(tmp_path):
    with ModelHarness(BACKEND, model_directory=folder_of(tmp_path, sums())) as harness:
        first, second = harness.execute_batch(
            [Request({"a": X, "b": X}), Request({"a": X * 2, "b": X})]
        )
        completed = harness.config

    assert first[0].outputs["total"].tolist() == [[2, 4, 6]]
    assert second[0].outputs["largest"].tolist() == [[6]]
    assert completed["max_batch_size"] == 4
    assert "dynamic_batching" in completed
    assert [each["dims"] for each in completed["output"]] == [[3], [1]]


def test_model_is_not_batched_if_the_default_is_negative(tmp_path):
    settings = {"default-max-batch-size": "-1"}
    folder = folder_of(tmp_path, sums())

    with ModelHarness(BACKEND, model_directory=folder, backend_config=settings) as harness:
        completed = harness.config

    assert completed["max_batch_size"] == 0
    assert completed["input"][0]["dims"] == [-1, 3]


def test_number_for_each_row_is_a_column(tmp_path):
    folder = folder_of(tmp_path, sums(keep_dims=False))
    with ModelHarness(BACKEND, model_directory=folder) as harness:
        response = harness.execute({"a": X, "b": X}, outputs=["largest"])
        completed = harness.config

    assert response.outputs["largest"].tolist() == [[3]]
    assert completed["output"][1]["dims"] == [1]
    assert completed["output"][1]["reshape"] == {"shape": []}


def test_model_of_fixed_size_is_not_batched(tmp_path):
    with ModelHarness(BACKEND, model_directory=folder_of(tmp_path, sums((1, 3)))) as harness:
        response = harness.execute({"a": X, "b": X}, outputs=["largest"])
        completed = harness.config

    assert {name: array.tolist() for name, array in response.outputs.items()} == {"largest": [[3]]}
    assert completed["max_batch_size"] == 0
    assert completed["input"][0]["dims"] == [1, 3]


def test_scalar_has_one_dimension(tmp_path):
    x = opset.parameter(openvino.PartialShape([]), np.float32, "x")
    row = opset.parameter(openvino.PartialShape([2]), np.float32, "row")
    total = opset.reduce_sum(opset.multiply(row, x), np.array([0], np.int64), keep_dims=False)
    for node, name in ((x, "x"), (row, "row"), (total, "total")):
        node.output(0).get_tensor().set_names({name})
    folder = folder_of(tmp_path, openvino.Model([total], [x, row], "scalars"))

    with ModelHarness(BACKEND, model_directory=folder) as harness:
        inputs = {"x": np.array([3], np.float32), "row": np.array([1, 2], np.float32)}
        response = harness.execute(inputs)
        completed = harness.config

    assert response.outputs["total"].tolist() == [9]
    assert [each["dims"] for each in (*completed["input"], *completed["output"])] == [[1], [2], [1]]


def test_parameters_are_properties_of_the_device(tmp_path):
    text = 'backend: "openvino"' + "".join(
        f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'
        for name, value in (("INFERENCE_NUM_THREADS", "1"), ("SKIP_OV_DYNAMIC_BATCHSIZE", "YES"))
    )

    with ModelHarness(BACKEND, model_directory=folder_of(tmp_path, sums(), text)) as harness:
        assert [line.message.partition(": ")[2] for line in harness.logs] == [
            "OpenVINO's CPU device does not have the parameters SKIP_OV_DYNAMIC_BATCHSIZE"
        ]


INPUTS = "".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: 3 }} ' for name in "ab")
OUTPUT = 'output { name: "total" data_type: TYPE_FP32 dims: 3 }'


@pytest.mark.parametrize(
    "tensors, expected",
    [
        (INPUTS.replace('"b"', '"c"') + OUTPUT, "configuration has no input ['b'], which"),
        (INPUTS.replace("dims", "optional: true dims") + OUTPUT, "'optional' is set to true for"),
        (INPUTS + OUTPUT.replace("total", "sum"), "unexpected inference output 'sum', allowed"),
        (
            INPUTS + OUTPUT.replace("FP32", "INT8"),
            "expects datatype TYPE_INT8 for output 'total', model provides TYPE_FP32",
        ),
        (
            INPUTS + OUTPUT.replace("dims: 3", "dims: 4"),
            (
                "the model expects 2 dimensions (shape [-1, 3]) but the model configuration"
                " specifies 2 dimensions (shape [-1, 4])"
            ),
        ),
    ],
    ids=["input", "optional", "output", "datatype", "shape"],
)
def test_wrong_configurations_are_refused_in_words(tmp_path, tensors, expected):
    folder = folder_of(tmp_path, sums(), f'backend: "openvino" max_batch_size: 8 {tensors}')

    with (
        pytest.raises(InvalidArgumentError) as failure,
        ModelHarness(BACKEND, model_directory=folder),
    ):
        pass
    assert expected in failure.value.message


def test_broken_file_is_refused_with_the_reason(tmp_path):
    folder = folder_of(tmp_path, sums())
    (folder / "1" / "model.xml").write_text("nonsense")

    with (
        pytest.raises(InternalError, match=r"openvino could not load '.*model\.xml': "),
        ModelHarness(BACKEND, model_directory=folder),
    ):
        pass


def test_missing_file_and_missing_package_are_named(tmp_path, monkeypatch):
    folder = folder_of(tmp_path, sums())
    (folder / "1" / "model.xml").unlink()
    with (
        pytest.raises(UnavailableError, match=r"unable to find 'model\.xml' or 'model\.onnx'"),
        ModelHarness(BACKEND, model_directory=folder),
    ):
        pass
    monkeypatch.setitem(sys.modules, "openvino", None)
    with (
        pytest.raises(UnavailableError, match=r"pip install 'pytriton\[openvino\]'"),
        ModelHarness(BACKEND, model_directory=folder),
    ):
        pass


def negative():
    """A model of ONNX: the negative of its input."""
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["x"], ["y"])],
        "negative",
        [value("x", onnx.TensorProto.FLOAT, ["n", 3])],
        [value("y", onnx.TensorProto.FLOAT, ["n", 3])],
    )
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )


def test_file_of_onnx_is_served_too(tmp_path):
    content = negative().SerializeToString()
    folder = make_model(
        tmp_path / "m",
        "model.onnx",
        lambda path: Path(path).write_bytes(content),
        'backend: "openvino"',
    )

    with ModelHarness(BACKEND, model_directory=folder) as harness:
        assert harness.execute({"x": X}).outputs["y"].tolist() == [[-1, -2, -3]]


def test_file_of_onnx_is_served_if_it_is_named_beside_another(tmp_path):
    text = 'backend: "openvino" default_model_filename: "model.onnx"'
    folder = folder_of(tmp_path, sums(), text)
    (folder / "1" / "model.onnx").write_bytes(negative().SerializeToString())

    with ModelHarness(BACKEND, model_directory=folder) as harness:
        assert harness.execute({"x": X}).outputs["y"].tolist() == [[-1, -2, -3]]
