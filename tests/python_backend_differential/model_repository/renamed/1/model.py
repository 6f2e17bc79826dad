# SPDX-License-Identifier: Apache-2.0
"""Gives its input back under another name, through DLPack."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """An identity."""

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor.from_dlpack("OUT", request.inputs()[0].to_dlpack())]
            )
            for request in requests
        ]
