# SPDX-License-Identifier: Apache-2.0
"""The model of the sequence scenarios: it writes down every execution, and waits at a gate.

Its folder has the file `journal`, one line for each execution, and the file `gate` while
executions have to wait. A request's VALUE is added to the sum of its sequence; some values do
something else.
"""

import json
import os
import pathlib
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FAILS, RAISES, DIES = -1, -2, -3
SENDS_NOTHING, SENDS_THREE = -4, -5


def plain(array):
    values = [
        value.decode() if isinstance(value, bytes) else value for value in array.ravel().tolist()
    ]
    return [str(array.dtype), list(array.shape), values]


class TritonPythonModel:
    """Records what it sees."""

    def initialize(self, args):
        self.folder = pathlib.Path(args["model_repository"])
        self.instance = args["model_instance_name"].removeprefix(args["model_name"] + "_")
        config = json.loads(args["model_config"])
        policy = config.get("model_transaction_policy", {})
        self.decoupled = policy.get("decoupled", False)
        self.batches = config["max_batch_size"] > 0
        batching = config.get("sequence_batching", {})
        self.states = {
            state["output_name"]: state["input_name"] for state in batching.get("state", [])
        }
        self.sums = {}

    def execute(self, requests):
        self.write({"instance": self.instance, "batch": [self.seen(item) for item in requests]})
        while (self.folder / "gate").exists():
            time.sleep(0.002)
        values = [self.value(request) for request in requests]
        if RAISES in values:
            raise ValueError("raised")
        if DIES in values:
            os._exit(3)
        if self.decoupled:
            for request in requests:
                self.send(request)
            return None
        return [self.answer(request) for request in requests]

    def write(self, entry):
        with (self.folder / "journal").open("a") as journal:
            journal.write(json.dumps(entry) + "\n")

    def seen(self, request):
        return {
            "id": request.request_id(),
            "corrid": request.correlation_id(),
            "flags": request.flags(),
            "inputs": {
                tensor.name(): plain(tensor.as_numpy())
                for tensor in sorted(request.inputs(), key=lambda tensor: tensor.name())
            },
        }

    def value(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "VALUE")
        return int(tensor.as_numpy().ravel()[0])

    def answer(self, request):
        value = self.value(request)
        if value == FAILS:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("failed"))
        key = request.correlation_id()
        if request.flags() & 1:
            self.sums[key] = 0
        self.sums[key] = self.sums.get(key, 0) + value
        shape = (1, 1) if self.batches else (1,)
        outputs = [
            pb_utils.Tensor("SUM", np.full(shape, self.sums[key], np.int32)),
            pb_utils.Tensor("INSTANCE", np.full(shape, self.instance, object)),
        ]
        for output, name in self.states.items():
            state = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            outputs.append(pb_utils.Tensor(output, (state + value).astype(state.dtype)))
        return pb_utils.InferenceResponse(outputs)

    def send(self, request):
        sender = request.get_response_sender()
        value = self.value(request)
        count = {SENDS_NOTHING: 0, SENDS_THREE: 3}.get(value, 1)
        for _ in range(count):
            sender.send(self.answer(request))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
