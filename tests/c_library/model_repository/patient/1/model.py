# SPDX-License-Identifier: Apache-2.0
"""Takes as many seconds as its input says, or less if the request is cancelled."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "IN")
        end = time.monotonic() + float(tensor.as_numpy()[0])
        while time.monotonic() < end:
            if request.is_cancelled():
                error = pb_utils.TritonError("given up", pb_utils.TritonError.CANCELLED)
                return pb_utils.InferenceResponse([], error)
            time.sleep(0.005)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())])
