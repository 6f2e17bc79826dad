# SPDX-License-Identifier: Apache-2.0
"""Small ONNX models for the tests."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "STRING": TensorProto.STRING,
}
node = helper.make_node


def tensor(name, shape, kind="FP32"):
    """A tensor's declaration; a dimension is a number, a name, or None."""
    return helper.make_tensor_value_info(name, TYPES.get(kind, kind), shape)


def constant(name, values):
    """A tensor with a value in the model."""
    return numpy_helper.from_array(np.asarray(values), name)


def model(nodes, inputs, outputs, constants=()):
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def single(operator, shape=("n", 2), kind="FP32", **attributes):
    """A model that computes y from x by one operator."""
    return model(
        [node(operator, ["x"], ["y"], **attributes)],
        [tensor("x", shape, kind)],
        [tensor("y", shape, kind)],
    )


def doubling(size=2):
    """Rows of y are twice the rows of x; a batch of any size."""
    return model(
        [node("Add", ["x", "x"], ["y"])], [tensor("x", ["n", size])], [tensor("y", ["n", size])]
    )


def overridable():
    """The output is x * scale, without batching; the scale is 3 unless a request has another."""
    return model(
        [node("Mul", ["x", "scale"], ["y"])],
        [tensor("x", [2]), tensor("scale", [1])],
        [tensor("y", [2])],
        [constant("scale", np.array([3], np.float32))],
    )


def write(made, path: pathlib.Path, **settings):
    """Write a model to a file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, str(path), **settings)
    return path
