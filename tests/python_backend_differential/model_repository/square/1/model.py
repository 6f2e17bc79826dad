# SPDX-License-Identifier: Apache-2.0
"""Answers a number as often as it says; a negative one with the final flag on the last answer."""

import numpy as np
import triton_python_backend_utils as pb_utils

FAILS_AFTER_ONE = 99


def responses(value):
    answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([abs(value)], np.int32))])
    if value == FAILS_AFTER_ONE:
        return [
            answer,
            pb_utils.InferenceResponse(
                error=pb_utils.TritonError("no more", pb_utils.TritonError.UNAVAILABLE)
            ),
        ]
    return [answer] * abs(value)


class TritonPythonModel:
    """A repeater."""

    def execute(self, requests):
        for request in requests:
            value = int(request.inputs()[0].as_numpy()[0])
            sender, answers = request.get_response_sender(), responses(value)
            for position, answer in enumerate(answers, 1):
                is_last = value < 0 and position == len(answers)
                sender.send(
                    answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
                )
            if value >= 0:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
