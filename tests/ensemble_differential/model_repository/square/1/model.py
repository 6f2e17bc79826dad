# SPDX-License-Identifier: Apache-2.0
"""Sends a number as many times as it says."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            number = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            for _ in range(number):
                out = pb_utils.Tensor("OUT", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse([out]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
