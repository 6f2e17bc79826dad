# SPDX-License-Identifier: Apache-2.0
"""Sends as many responses as a request asks for, with its tag and their index."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


def number(request, name):
    """The only number of an input."""
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0])


class TritonPythonModel:
    """Counts up."""

    def execute(self, requests):
        """Answer each request; one whose client is gone ends early."""
        for request in requests:
            self.answer(request, request.get_response_sender())

    def answer(self, request, sender):
        """Send the responses to one request."""
        tag, delay_us = number(request, "TAG"), number(request, "DELAY_US")
        for index in range(number(request, "COUNT")):
            if delay_us:
                time.sleep(delay_us / 1e6)
            if request.is_cancelled():
                break
            output = pb_utils.Tensor("OUT", np.array([tag, index], np.int32))
            sender.send(pb_utils.InferenceResponse([output]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
