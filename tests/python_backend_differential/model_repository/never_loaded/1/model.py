# SPDX-License-Identifier: Apache-2.0
"""A model that nobody loads."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Says where it came from."""

    def execute(self, requests):
        text = np.array([b"from the disk"], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]
