# SPDX-License-Identifier: Apache-2.0
"""Adds up the numbers of each sequence, as a Python-backend model."""

import triton_python_backend_utils as pb_utils


def control(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0, 0]


class TritonPythonModel:
    """What the Python backend looks for."""

    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.add(request) for request in requests]

    def add(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        if control(request, "ready"):
            sequence = control(request, "id")
            if not control(request, "start"):
                x = x + self.sums[sequence]
            if control(request, "end"):
                self.sums.pop(sequence, None)
            else:
                self.sums[sequence] = x
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("sum", x)])
