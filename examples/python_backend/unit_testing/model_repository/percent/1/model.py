# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        return [answer(request) for request in requests]


def answer(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
    inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    if not inputs["WHOLE"].all():
        return pb_utils.InferenceResponse(
            error=pb_utils.TritonError("WHOLE must not be 0", pb_utils.TritonError.INVALID_ARG)
        )
    percent = 100 * inputs["PART"] / inputs["WHOLE"]
    digits = json.loads(request.parameters()).get("digits")
    if digits is not None:
        percent = percent.round(digits)
    if (percent > 100).any():
        pb_utils.Logger.log_warn("a part is more than the whole")
    return pb_utils.InferenceResponse([pb_utils.Tensor("PERCENT", percent)])
