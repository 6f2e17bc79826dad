# SPDX-License-Identifier: Apache-2.0
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The average of the values that a sequence has had so far."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value, total, count, start = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("VALUE", "TOTAL", "COUNT", "START")
        )
        if start.item():
            pb_utils.Logger.log_verbose(f"sequence {request.correlation_id()} starts")
        total, count = total + value, count + np.float32(1)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("AVERAGE", total / count),
                pb_utils.Tensor("NEXT_TOTAL", total),
                pb_utils.Tensor("NEXT_COUNT", count),
            ]
        )
