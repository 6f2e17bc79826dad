# SPDX-License-Identifier: Apache-2.0
"""Asks the model that it is told, which is an ensemble, and passes on what that answers."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


def text_of(response):
    if response.has_error():
        return response.error().message()
    return {tensor.name(): tensor.as_numpy().tolist() for tensor in response.output_tensors()}


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        words = pb_utils.get_input_tensor_by_name(request, "WORDS").as_numpy()
        model, way, output, *numbers = words[0].decode().split()
        array = np.array([[int(number) for number in numbers]], np.int32)
        asked = pb_utils.InferenceRequest(
            model_name=model,
            inputs=[pb_utils.Tensor("A", array[0] if way == "stream" else array)],
            requested_output_names=[output],
        )
        if way == "stream":
            answer = [text_of(one) for one in asked.exec(decoupled=True)]
        else:
            answer = text_of(asked.exec())
        tensor = pb_utils.Tensor("ANSWER", np.array([json.dumps(answer).encode()], dtype=object))
        return pb_utils.InferenceResponse([tensor])
