# SPDX-License-Identifier: Apache-2.0
"""Runs the ONNX file of the model Mlp, as a Python-backend model."""

import pathlib

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils


def tensor_of(request):
    return pb_utils.get_input_tensor_by_name(request, "x").as_numpy()


def response(y):
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("y", y)])


class TritonPythonModel:
    """What the Python backend looks for."""

    def initialize(self, args):
        file = pathlib.Path(__file__).resolve().parents[2] / "Mlp" / "1" / "model.onnx"
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        """The session runs once for all requests."""
        arrays = [tensor_of(request) for request in requests]
        if len(arrays) == 1:
            return [response(self.session.run(["y"], {"x": arrays[0]})[0])]
        (y,) = self.session.run(["y"], {"x": np.concatenate(arrays)})
        responses, start = [], 0
        for array in arrays:
            end = start + len(array)
            responses.append(response(y[start:end]))
            start = end
        return responses
