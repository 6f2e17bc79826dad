# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The average of the values that a sequence has had so far."""

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        return [self.answer(request) for request in requests]

    def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if inputs["START"].item():
            pb_utils.Logger.log_verbose(f"sequence {request.correlation_id()} starts")
        total, count = inputs["TOTAL"] + inputs["VALUE"], inputs["COUNT"] + np.float32(1)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("AVERAGE", total / count),
                pb_utils.Tensor("NEXT_TOTAL", total),
                pb_utils.Tensor("NEXT_COUNT", count),
            ]
        )
