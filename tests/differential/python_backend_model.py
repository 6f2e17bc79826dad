# SPDX-License-Identifier: Apache-2.0
"""The `model.py` of every compared model: runs the function that its configuration names."""

import importlib.util
import json
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Hands the function named in the configuration the arrays of one request at a time."""

    def initialize(self, args):
        path = Path(args["model_repository"]) / args["model_version"] / "model_functions.py"
        module_spec = importlib.util.spec_from_file_location("model_functions", path)
        functions = importlib.util.module_from_spec(module_spec)
        module_spec.loader.exec_module(functions)
        config = json.loads(args["model_config"])
        self.function = getattr(functions, config["parameters"]["function"]["string_value"])
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.needs_pass_through = any(
            tensor["data_type"] == "TYPE_BF16" for tensor in config["input"]
        )

    def execute(self, requests):
        answers = [self._answer(request) for request in requests]
        if not self.decoupled:
            return answers
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for request, answer in zip(requests, answers, strict=True):
            request.get_response_sender().send(answer, flags=final)
        return None

    def _answer(self, request):
        if self.needs_pass_through:  # numpy has no bfloat16: hand the memory on
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            return pb_utils.InferenceResponse(
                [pb_utils.Tensor.from_dlpack("OUT", tensor.to_dlpack())]
            )
        arrays = {}
        for name in self.inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:
                arrays[name] = tensor.as_numpy()
        outputs = self.function(arrays, json.loads(request.parameters()))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, array) for name, array in outputs.items()]
        )
