# SPDX-License-Identifier: Apache-2.0
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in "ab")
            outputs = [pb_utils.Tensor("add", a + b), pb_utils.Tensor("sub", a - b)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
