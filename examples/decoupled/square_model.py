# SPDX-License-Identifier: Apache-2.0
"""square_int32: as many responses as IN says, each with the value of IN; none for 0."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import numpy as np
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from c_python_backend_utils import InferenceResponseSender


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        # Without this setting the server expects exactly one response to each request.
        if not pb_utils.using_decoupled_model_transaction_policy(config):
            raise pb_utils.TritonModelException(
                f"model '{args['model_name']}' needs a config.pbtxt with"
                " 'model_transaction_policy { decoupled: true }'"
            )
        self.threads: set[threading.Thread] = set()

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Answer each request on a thread of its own: responses of many requests mix."""
        for request in requests:
            (number,) = request.inputs()[0].as_numpy().tolist()
            thread = threading.Thread(
                target=self.answer, args=(request.get_response_sender(), number), daemon=True
            )
            self.threads.add(thread)
            thread.start()

    def answer(self, sender: InferenceResponseSender, number: int) -> None:
        output = pb_utils.Tensor("OUT", np.array([number], np.int32))
        for _ in range(number):
            if sender.is_cancelled():  # the client left
                break
            sender.send(pb_utils.InferenceResponse([output]))
        # Also where nothing was sent: the server must know that nothing more will come.
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.threads.discard(threading.current_thread())

    def finalize(self) -> None:
        print("Finalize invoked")
        for thread in list(self.threads):
            thread.join()
        print("Finalize complete...")
