# SPDX-License-Identifier: Apache-2.0
"""Answers each element with a response of its own; one that is negative, with an error."""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in pb_utils.get_input_tensor_by_name(request, "IN").as_numpy():
                if value < 0:
                    error = pb_utils.TritonError(f"{value} is negative")
                    sender.send(pb_utils.InferenceResponse([], error))
                else:
                    output = pb_utils.Tensor("OUT", np.array([value], np.int32))
                    sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=FINAL)
