# SPDX-License-Identifier: Apache-2.0
"""A response for each element of IN, as a Python-backend model; nobody here asks for a pause."""

import numpy as np
import triton_python_backend_utils as pb_utils


def repeat(request):
    sender = request.get_response_sender()
    values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    for index in range(values.size):
        tensors = [
            pb_utils.Tensor("IDX", np.array([index], np.uint32)),
            pb_utils.Tensor("OUT", values[index : index + 1]),
        ]
        sender.send(pb_utils.InferenceResponse(output_tensors=tensors))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class TritonPythonModel:
    """What the Python backend looks for."""

    def execute(self, requests):
        for request in requests:
            repeat(request)
