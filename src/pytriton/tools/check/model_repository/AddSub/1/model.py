# SPDX-License-Identifier: Apache-2.0
"""The model that the check of model repositories serves."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Adds and subtracts, as the bound function of the check does."""

    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Declare the inputs and outputs of the model, instead of a config.pbtxt."""
        for name in ("a", "b"):
            config.add_input({"name": name, "data_type": "TYPE_FP32", "dims": [1]})
        for name in ("add", "sub"):
            config.add_output({"name": name, "data_type": "TYPE_FP32", "dims": [1]})
        config.set_max_batch_size(16)
        return config

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        """Answer each request."""
        return [_answer(request) for request in requests]


def _answer(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
    a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("a", "b"))
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor("add", a + b), pb_utils.Tensor("sub", a - b)]
    )
