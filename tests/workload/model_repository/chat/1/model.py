# SPDX-License-Identifier: Apache-2.0
"""Repeats the last message of a chat, or a prompt, word by word."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sends each word as a response."""

    def execute(self, requests):
        """Answer each request."""
        for request in requests:
            sender = request.get_response_sender()
            (given,) = request.inputs()
            text = given.as_numpy().item().decode()
            if given.name() == "messages":
                text = json.loads(text)[-1]["content"]
            for word in text.split():
                output = pb_utils.Tensor("text", np.array([f"{word} ".encode()], np.object_))
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
