# SPDX-License-Identifier: Apache-2.0
"""Lets the model that MODEL_NAME names answer."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        return [forward(request) for request in requests]


def forward(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
    inputs = {tensor.name(): tensor for tensor in request.inputs()}
    name: bytes = inputs["MODEL_NAME"].as_numpy().item()
    call = pb_utils.InferenceRequest(
        model_name=name.decode(),
        inputs=[inputs["VALUES"]],
        requested_output_names=["RESULT"],
    )
    answer = call.exec()
    # A call that fails raises nothing: its response has the error. It is passed on, so only this
    # request fails, with the code and the message of the model that was called.
    if answer.has_error():
        return pb_utils.InferenceResponse(error=answer.error())
    return pb_utils.InferenceResponse(answer.output_tensors())
