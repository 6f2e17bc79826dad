# SPDX-License-Identifier: Apache-2.0
"""Lets AddSub compute: a call of another model for each request, as a Python-backend model."""

import triton_python_backend_utils as pb_utils


def call_add_sub(request):
    call = pb_utils.InferenceRequest(
        model_name="AddSub",
        requested_output_names=["add", "sub"],
        inputs=[pb_utils.get_input_tensor_by_name(request, name) for name in ("a", "b")],
    )
    answer = call.exec()
    if answer.has_error():
        return pb_utils.InferenceResponse(error=answer.error())
    return pb_utils.InferenceResponse(output_tensors=answer.output_tensors())


class TritonPythonModel:
    """What the Python backend looks for."""

    def execute(self, requests):
        return [call_add_sub(request) for request in requests]
