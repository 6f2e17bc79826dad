# SPDX-License-Identifier: Apache-2.0
"""Tells what it is asked: the fields of the request and its inputs."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


def told(request, number_of_requests):
    return {
        "id": request.request_id(),
        "correlation id": request.correlation_id(),
        "flags": request.flags(),
        "timeout": request.timeout(),
        "parameters": json.loads(request.parameters() or "{}"),
        "outputs": sorted(request.requested_output_names()),
        "requests": number_of_requests,
        "inputs": {
            tensor.name(): tensor.as_numpy().tolist()
            for tensor in sorted(request.inputs(), key=lambda tensor: tensor.name())
        },
    }


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = json.dumps(told(request, len(requests)), sort_keys=True)
            array = np.array([text.encode()], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", array)]))
        return responses
