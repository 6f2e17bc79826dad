# SPDX-License-Identifier: Apache-2.0
"""Treats each request of a batch by its first number."""

import numpy as np
import triton_python_backend_utils as pb_utils

FAILS, RAISES, SENDS, GROWS = 1, 2, 3, 4


def first_number(request):
    return int(request.inputs()[0].as_numpy().ravel()[0])


class TritonPythonModel:
    """Answers, fails, sends or raises."""

    def execute(self, requests):
        answers = [self._answer(request, len(requests)) for request in requests]
        if any(first_number(request) == RAISES for request in requests):
            raise ValueError("all of them")
        return answers

    def _answer(self, request, count):
        numbers = request.inputs()[0].as_numpy()
        action = first_number(request)
        if action == FAILS:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError("only this one", pb_utils.TritonError.NOT_FOUND)
            )
        if action == GROWS:
            numbers = np.concatenate([numbers, numbers])
        answer = pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("OUT", numbers),
                pb_utils.Tensor("REQUESTS", np.full((len(numbers), 1), count, np.int32)),
            ]
        )
        if action == SENDS:
            return request.get_response_sender().send(
                answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )
        return answer
