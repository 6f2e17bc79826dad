# SPDX-License-Identifier: Apache-2.0
"""Waits for the longest of the times that the requests of a batch name."""

import time

import triton_python_backend_utils as pb_utils


def read(request, name):
    """The array of an input."""
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


class TritonPythonModel:
    """Returns numbers, late."""

    def execute(self, requests):
        """Wait, then answer all."""
        time.sleep(max(int(read(request, "DELAY_US").max()) for request in requests) / 1e6)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", read(request, "IN"))])
            for request in requests
        ]
