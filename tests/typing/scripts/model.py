# SPDX-License-Identifier: Apache-2.0
"""A user's model for the Python backend."""

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(
        auto_complete_model_config: pb_utils.ModelConfig,
    ) -> pb_utils.ModelConfig:
        auto_complete_model_config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        auto_complete_model_config.add_output(
            {"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}
        )
        auto_complete_model_config.set_max_batch_size(0)
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        config: dict[str, Any] = json.loads(args["model_config"])
        output = pb_utils.get_output_config_by_name(config, "OUT")
        self.dtype = pb_utils.triton_string_to_numpy(output["data_type"]) if output else np.float32
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        family = pb_utils.MetricFamily("n", "Number", pb_utils.MetricFamily.COUNTER)
        self.count = family.Metric(labels={"model": args["model_name"]})

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse | None]:
        return [self.answer(request) for request in requests]

    def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse | None:
        tensor = pb_utils.get_input_tensor_by_name(request, "IN")
        if tensor is None:
            error = pb_utils.TritonError("IN is missing", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        self.count.increment(1)
        pb_utils.Logger.log_info(f"request {request.request_id()}")
        output = pb_utils.Tensor("OUT", tensor.as_numpy() * 2)
        response = pb_utils.InferenceResponse(output_tensors=[output])
        if not self.is_decoupled:
            return response
        sender = request.get_response_sender()
        if not sender.is_cancelled():
            sender.send(response)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def ask(self, name: str) -> pb_utils.InferenceResponse:
        inner = pb_utils.InferenceRequest(
            model_name=name, inputs=[], requested_output_names=["OUT"], correlation_id=1
        )
        for part in inner.exec(decoupled=True):
            if part.has_error():
                raise pb_utils.TritonModelException(part.error().message())
        return inner.exec()

    async def ask_asynchronously(self, name: str) -> list[pb_utils.Tensor]:
        inner = pb_utils.InferenceRequest(
            model_name=name, inputs=[], requested_output_names=["OUT"]
        )
        answer = await inner.async_exec()
        return list(answer.output_tensors())

    def finalize(self) -> None:
        print(self.dtype)
