# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

path = sys.argv[1] if len(sys.argv) > 1 else "model.onnx"
weights = {
    "W1": [[1, 1], [1, 1]],
    "B1": [0, -1],
    "W2": [[1], [-2]],
    "B2": [0],
}
graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["X", "W1", "B1"], ["sums"]),
        helper.make_node("Relu", ["sums"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "W2", "B2"], ["Y"]),
    ],
    "xor",
    # The first dimension has a name instead of a number: the server may batch requests.
    [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["rows", 2])],
    [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["rows", 1])],
    [
        numpy_helper.from_array(np.array(values, np.float32), name)
        for name, values in weights.items()
    ],
)
opset = helper.make_opsetid("", 17)
onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
