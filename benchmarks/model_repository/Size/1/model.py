# SPDX-License-Identifier: Apache-2.0
"""Says how many numbers it got, as a Python-backend model: large tensors go one way only."""

import numpy as np
import triton_python_backend_utils as pb_utils


def count(request):
    x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
    size = np.full((x.shape[0], 1), x.shape[1], np.int64)
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("size", size)])


class TritonPythonModel:
    """What the Python backend looks for."""

    def execute(self, requests):
        return [count(request) for request in requests]
