# SPDX-License-Identifier: Apache-2.0
"""Answers with the request's text, id and parameters.

The text "fail" is answered with an error, "parameters" with parameters of the response.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0][0]
        if text == b"fail":
            return pb_utils.InferenceResponse([], pb_utils.TritonError("it was told to"))
        parameters = json.loads(request.parameters())
        if text == b"parameters":  # which older versions of Triton do not have
            return pb_utils.InferenceResponse([], parameters=dict(sorted(parameters.items())))
        seen = [text.decode(), request.request_id(), sorted(parameters.items())]
        output = np.array([[json.dumps(seen).encode()]], object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", output)])
