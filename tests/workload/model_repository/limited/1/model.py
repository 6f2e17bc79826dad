# SPDX-License-Identifier: Apache-2.0
"""Adds one to numbers."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Adds one to numbers."""

    def execute(self, requests):
        """Answer each request of a batch; others wait meanwhile for what it needs."""
        time.sleep(0.001)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Answer one request."""
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value + 1)])
