# SPDX-License-Identifier: Apache-2.0
"""Adds up the responses of a model that sends many; itself it sends one."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        return [add_up(request) for request in requests]


def add_up(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
    call = pb_utils.InferenceRequest(
        model_name="countdown", inputs=request.inputs(), requested_output_names=["NUMBER"]
    )
    total = 0
    for answer in call.exec(decoupled=True):
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        # The last one has no tensors: the model said with it that it had sent everything.
        total += sum(tensor.as_numpy().item() for tensor in answer.output_tensors())
    return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.array([total], np.int32))])
