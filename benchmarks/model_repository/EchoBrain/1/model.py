# SPDX-License-Identifier: Apache-2.0
"""Gives back what it got, through DLPack, since numpy has no BF16, as a Python-backend model."""

import triton_python_backend_utils as pb_utils


def echo(request):
    x = pb_utils.get_input_tensor_by_name(request, "x")
    return pb_utils.InferenceResponse(
        output_tensors=[pb_utils.Tensor.from_dlpack("y", x.to_dlpack())]
    )


class TritonPythonModel:
    """What the Python backend looks for."""

    def execute(self, requests):
        return [echo(request) for request in requests]
