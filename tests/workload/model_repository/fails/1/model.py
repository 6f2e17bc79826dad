# SPDX-License-Identifier: Apache-2.0
"""Refuses odd numbers."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Returns even numbers."""

    def execute(self, requests):
        """Raise for an odd number."""
        (request,) = requests
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if value[0] % 2:
            raise ValueError(f"odd {value[0]}")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)])]
