# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils

# Short words that are frequent in English, German and French.
FREQUENT = ({"the", "and", "of", "is"}, {"der", "die", "und", "ist"}, {"le", "la", "et", "est"})


class TritonPythonModel:
    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        return [answer(request) for request in requests]


def answer(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
    texts = request.inputs()[0].as_numpy()[:, 0]
    counts = np.array([count(text.decode()) for text in texts], np.float32)
    return pb_utils.InferenceResponse([pb_utils.Tensor("COUNTS", counts)])


def count(text: str) -> list[int]:
    words = text.lower().split()
    return [sum(word in frequent for word in words) for frequent in FREQUENT]
