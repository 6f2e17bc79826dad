# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        """Called once in the process of each instance, before any request."""
        config = json.loads(args["model_config"])
        self.types = {
            output["name"]: pb_utils.triton_string_to_numpy(output["data_type"])
            for output in config["output"]
        }

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        """Called with the requests of a batch; returns a response for each, in their order."""
        return [self.answer(request) for request in requests]

    def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        a, b = inputs["INPUT0"], inputs["INPUT1"]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("OUTPUT0", (a + b).astype(self.types["OUTPUT0"])),
                pb_utils.Tensor("OUTPUT1", (a - b).astype(self.types["OUTPUT1"])),
            ]
        )

    def finalize(self) -> None:
        """Called when the model is unloaded, after its last request."""
        pb_utils.Logger.log_info("add_sub says goodbye")
