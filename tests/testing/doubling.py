# SPDX-License-Identifier: Apache-2.0
"""A model that doubles its input, and its configuration, for tests of the harness."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


def config(**fields):
    return {
        "name": "double",
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
        **fields,
    }


def doubled(request):
    array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array * 2)])


class Doubling:
    def execute(self, requests):
        return [doubled(request) for request in requests]
