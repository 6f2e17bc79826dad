# SPDX-License-Identifier: Apache-2.0
"""The `model.py` of every compared stream: what a generator yields, then a final flag."""

import importlib.util
import json
from pathlib import Path

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Runs the generator named in the configuration, one request after another."""

    def initialize(self, args):
        path = Path(args["model_repository"]) / args["model_version"] / "model_functions.py"
        module_spec = importlib.util.spec_from_file_location("model_functions", path)
        functions = importlib.util.module_from_spec(module_spec)
        module_spec.loader.exec_module(functions)
        config = json.loads(args["model_config"])
        self.function = getattr(functions, config["parameters"]["function"]["string_value"])

    def execute(self, requests):
        for request in requests:
            self._answer(request)

    def _answer(self, request):
        sender = request.get_response_sender()
        array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        try:
            for outputs in self.function({"IN": array}, json.loads(request.parameters())):
                tensors = [pb_utils.Tensor(name, value) for name, value in outputs.items()]
                sender.send(pb_utils.InferenceResponse(tensors))
        except ValueError as error:
            failure = pb_utils.TritonError(f"ValueError: {error}")
            sender.send(pb_utils.InferenceResponse([], error=failure), flags=FINAL)
        else:
            sender.send(flags=FINAL)
