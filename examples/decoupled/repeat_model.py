# SPDX-License-Identifier: Apache-2.0
"""repeat_int32: one response for each element of IN, after the pause that DELAY has for it."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from c_python_backend_utils import InferenceResponseSender

NOTICE_PERIOD_S = 5.0


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        # Without this setting the server expects exactly one response to each request.
        if not pb_utils.using_decoupled_model_transaction_policy(config):
            raise pb_utils.TritonModelException(
                f"model '{args['model_name']}' needs a config.pbtxt with"
                " 'model_transaction_policy { decoupled: true }'"
            )
        self.out_type = output_type(config, "OUT")
        self.idx_type = output_type(config, "IDX")
        length = config["parameters"].get("output_num_elements", {"string_value": "1"})
        self.out_length = int(length["string_value"])
        self.threads: set[threading.Thread] = set()

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Start a thread that answers the request, and return: a decoupled model returns None."""
        if len(requests) != 1:
            raise pb_utils.TritonModelException(
                f"expected one request at a time, got {len(requests)}"
            )
        inputs = {tensor.name(): tensor.as_numpy() for tensor in requests[0].inputs()}
        values, delays_ms = inputs["IN"], inputs["DELAY"]
        if values.shape != delays_ms.shape:
            raise pb_utils.TritonModelException(
                "expected IN and DELAY shape to match,"
                f" got {list(values.shape)} and {list(delays_ms.shape)}."
            )
        # The request is over when this method returns. Its sender and the arrays of its tensors
        # may be used for longer.
        sender = requests[0].get_response_sender()
        thread = threading.Thread(
            target=self.answer, args=(sender, values.tolist(), delays_ms.tolist()), daemon=True
        )
        self.threads.add(thread)
        thread.start()

        # The instance takes its next request when this method returns. WAIT holds that off.
        time.sleep(inputs["WAIT"][0] / 1000)

    def answer(
        self, sender: InferenceResponseSender, values: list[int], delays_ms: list[int]
    ) -> None:
        for index, (value, delay_ms) in enumerate(zip(values, delays_ms, strict=True)):
            time.sleep(delay_ms / 1000)
            if sender.is_cancelled():  # the client left
                break
            outputs = [
                pb_utils.Tensor("IDX", np.array([index], self.idx_type)),
                pb_utils.Tensor("OUT", np.full([self.out_length], value, self.out_type)),
            ]
            sender.send(pb_utils.InferenceResponse(outputs))
        # Every request needs this flag once. It may also go along with the last response.
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.threads.discard(threading.current_thread())

    def finalize(self) -> None:
        print("Finalize invoked")
        for thread in list(self.threads):
            thread.join(NOTICE_PERIOD_S)
            while thread.is_alive():
                print("Waiting for the responses in flight...")
                thread.join(NOTICE_PERIOD_S)
        print("Finalize complete...")


def output_type(config: dict[str, Any], name: str) -> type:
    output = pb_utils.get_output_config_by_name(config, name)
    if output is None:
        raise pb_utils.TritonModelException(f"config.pbtxt has no output '{name}'")
    return pb_utils.triton_string_to_numpy(output["data_type"])
