# SPDX-License-Identifier: Apache-2.0
"""Sends each of its numbers in a response of its own."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for index, number in enumerate(numbers):
                out = pb_utils.Tensor("OUT", np.array([number], np.int32))
                position = pb_utils.Tensor("INDEX", np.array([index], np.int32))
                sender.send(pb_utils.InferenceResponse([out, position]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
