# SPDX-License-Identifier: Apache-2.0
"""Adds and subtracts two arrays."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers each request by itself."""

    def execute(self, requests):
        """Return one response per request."""
        responses = []
        for request in requests:
            first = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            second = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [
                pb_utils.Tensor("OUTPUT0", first + second),
                pb_utils.Tensor("OUTPUT1", first - second),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
