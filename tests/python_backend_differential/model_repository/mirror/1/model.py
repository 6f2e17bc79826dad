# SPDX-License-Identifier: Apache-2.0
"""Tells what it sees of a request, and gives the inputs back."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


def described(tensor):
    array = tensor.as_numpy()
    data = [str(value) for value in array.ravel().tolist()]
    return [tensor.name(), array.dtype.name, tensor.shape(), data, bool(array.flags.writeable)]


def seen(request):
    return {
        "inputs": sorted(described(tensor) for tensor in request.inputs()),
        "outputs": sorted(request.requested_output_names()),
        "id": request.request_id(),
        "correlation id": request.correlation_id(),
        "flags": request.flags(),
        "timeout": request.timeout(),
        "parameters": json.loads(request.parameters()),
        "cancelled": request.is_cancelled(),
    }


class TritonPythonModel:
    """A mirror."""

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        text = np.array([json.dumps(seen(request), sort_keys=True)], dtype=object)
        echoes = [
            pb_utils.Tensor(f"OUT_{tensor.name()}", tensor.as_numpy())
            for tensor in sorted(request.inputs(), key=lambda tensor: tensor.name())
        ]
        return pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", text), *echoes])
