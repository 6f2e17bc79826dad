# SPDX-License-Identifier: Apache-2.0
"""Sums of sequences, by their ids; -1 where a sequence has no sum that it should have."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


def read(request, name):
    """The only element of an input."""
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0]


class TritonPythonModel:
    """Adds up the inputs of each sequence."""

    def initialize(self, args):
        """Begin without sequences."""
        self.sums = {}

    def execute(self, requests):
        """Answer each request of a batch; the next ones of the sequences wait meanwhile."""
        time.sleep(0.001)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Add the input of a request to its sequence; a null request changes nothing."""
        key = int(read(request, "CORRID"))
        total = self.add(request, key) if read(request, "READY") else 0
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("OUT", np.array([[total]], np.int64)),
                pb_utils.Tensor("ID", np.array([[key]], np.uint64)),
            ]
        )

    def add(self, request, key):
        """The sum of a sequence, after a request."""
        before = 0 if read(request, "START") else self.sums.get(key)
        total = -1 if before is None else before + int(read(request, "IN"))
        self.sums[key] = total
        if read(request, "END"):
            del self.sums[key]
        return total
