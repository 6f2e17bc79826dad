# SPDX-License-Identifier: Apache-2.0
"""Answers as its input says, word by word: good numbers, errors and wrong tensors."""

import numpy as np
import triton_python_backend_utils as pb_utils

WRONG = {
    "float": np.array([1.5], np.float32),
    "shape": np.array([[1, 2], [3, 4]], np.int32),
    "long": np.array([1, 2, 3], np.int32),
    "nothing": np.array([], np.int32),
}


def response_of(word):
    if word == "raise":
        raise ValueError("the model raised")
    if word.startswith("error"):
        code = getattr(pb_utils.TritonError, word.partition(":")[2] or "INTERNAL")
        return pb_utils.InferenceResponse([], pb_utils.TritonError("the model failed", code))
    if word == "missing":
        return pb_utils.InferenceResponse([])
    if word == "more":
        tensors = [("MORE", np.array([9], np.int32)), ("OUT", np.array([1], np.int32))]
        return pb_utils.InferenceResponse([pb_utils.Tensor(*tensor) for tensor in tensors])
    array = WRONG[word] if word in WRONG else np.array([int(word)], np.int32)
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])


class TritonPythonModel:
    def initialize(self, args):
        self.is_decoupled = args["model_name"].startswith("streaming")

    def execute(self, requests):
        if self.is_decoupled:
            for request in requests:
                self.stream(request)
            return None
        return [response_of(words_of(request)[0]) for request in requests]

    def stream(self, request):
        sender = request.get_response_sender()
        for word in words_of(request):
            if word == "final":
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                return
            if word.startswith("last:"):
                sender.send(
                    response_of(word.partition(":")[2]),
                    flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
                )
                return
            sender.send(response_of(word))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def words_of(request):
    return pb_utils.get_input_tensor_by_name(request, "WORDS").as_numpy()[0].decode().split()
