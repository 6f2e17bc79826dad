# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            send_lines(request)


def send_lines(request: pb_utils.InferenceRequest) -> None:
    sender = request.get_response_sender()
    text = request.inputs()[0].as_numpy().item()
    for line in text.splitlines():
        output = pb_utils.Tensor("LINE", np.array([[line]], np.object_))
        sender.send(pb_utils.InferenceResponse([output]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
