# SPDX-License-Identifier: Apache-2.0
"""Lets the model `double` answer."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Passes requests and answers on."""

    def execute(self, requests):
        """Answer each request of a batch."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Call the other model; its error is the answer, too."""
        answer = pb_utils.InferenceRequest(
            model_name="double", inputs=request.inputs(), requested_output_names=["OUT"]
        ).exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        return pb_utils.InferenceResponse(answer.output_tensors())
