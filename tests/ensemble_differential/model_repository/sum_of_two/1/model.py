# SPDX-License-Identifier: Apache-2.0
"""Sum and difference of two tensors; an output that is not asked for is left out."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "LEFT").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "RIGHT").as_numpy()
            made = {"SUM": left + right, "DIFFERENCE": left - right}
            tensors = [
                pb_utils.Tensor(name, made[name])
                for name in made
                if name in request.requested_output_names()
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
