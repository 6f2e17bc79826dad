# SPDX-License-Identifier: Apache-2.0
"""The sum and the difference of two numbers, as a Python-backend model."""

import triton_python_backend_utils as pb_utils


def add_sub(request):
    a = pb_utils.get_input_tensor_by_name(request, "a").as_numpy()
    b = pb_utils.get_input_tensor_by_name(request, "b").as_numpy()
    return pb_utils.InferenceResponse(
        output_tensors=[pb_utils.Tensor("add", a + b), pb_utils.Tensor("sub", a - b)]
    )


class TritonPythonModel:
    """What the Python backend looks for."""

    def execute(self, requests):
        return [add_sub(request) for request in requests]
