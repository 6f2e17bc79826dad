# SPDX-License-Identifier: Apache-2.0
"""Doubles."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(each, "IN").as_numpy() for each in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", 2 * values)]) for values in inputs
        ]
