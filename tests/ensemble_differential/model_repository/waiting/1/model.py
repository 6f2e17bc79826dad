# SPDX-License-Identifier: Apache-2.0
"""Waits until a file appears or the request is cancelled, and writes down which it was.

The input names the files: `<name>.started` is made, `<name>.go` is waited for, `<name>.cancelled`
says that the request was cancelled.
"""

import pathlib
import time

import triton_python_backend_utils as pb_utils

LONGEST_S = 60


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "FILE")
        name = tensor.as_numpy()[0].decode()
        pathlib.Path(f"{name}.started").touch()
        end = time.monotonic() + LONGEST_S
        while time.monotonic() < end and not pathlib.Path(f"{name}.go").exists():
            if request.is_cancelled():
                pathlib.Path(f"{name}.cancelled").touch()
                return pb_utils.InferenceResponse(
                    [], pb_utils.TritonError("given up", pb_utils.TritonError.CANCELLED)
                )
            time.sleep(0.01)
        return pb_utils.InferenceResponse([pb_utils.Tensor("NAME", tensor.as_numpy())])
