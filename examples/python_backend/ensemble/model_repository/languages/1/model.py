# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        return [answer(request) for request in requests]


def answer(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
    counts = request.inputs()[0].as_numpy()
    if not counts.any(axis=1).all():
        error = pb_utils.TritonError("no known word", pb_utils.TritonError.INVALID_ARG)
        return pb_utils.InferenceResponse(error=error)
    shares = (counts / counts.sum(axis=1, keepdims=True)).astype(np.float32)
    return pb_utils.InferenceResponse([pb_utils.Tensor("SHARES", shares)])
