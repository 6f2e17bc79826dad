# SPDX-License-Identifier: Apache-2.0
"""Repeats the last message of a chat, word by word."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sends each word as a response."""

    def execute(self, requests):
        """Answer each request."""
        for request in requests:
            sender = request.get_response_sender()
            messages = pb_utils.get_input_tensor_by_name(request, "messages").as_numpy().item()
            for word in json.loads(messages)[-1]["content"].split():
                output = pb_utils.Tensor("text", np.array([f"{word} ".encode()], np.object_))
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
