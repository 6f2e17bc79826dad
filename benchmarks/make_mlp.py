# SPDX-License-Identifier: Apache-2.0
"""Writes the ONNX file of the model Mlp: python -m benchmarks.make_mlp.

The file is in the repository, so that measuring does not need the package onnx.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.mlp import FILE, WIDTH, weights

OPSET, IR_VERSION = 17, 8  # so old that every release that is still used reads them


def make() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "w2", "b2"], ["y"]),
    ]
    shape: list[str | int] = ["rows", WIDTH]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    values = [numpy_helper.from_array(array, name) for name, array in weights().items()]
    graph = helper.make_graph(nodes, "mlp", [x], [y], values)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)


if __name__ == "__main__":
    onnx.save(make(), FILE)
