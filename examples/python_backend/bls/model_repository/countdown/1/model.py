# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils

PAUSE_S = 0.001


class TritonPythonModel:
    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Count for all requests at once; a coroutine lets the next batch begin meanwhile."""
        await asyncio.gather(*(count(request) for request in requests))


async def count(request: pb_utils.InferenceRequest) -> None:
    sender = request.get_response_sender()
    (start,) = request.inputs()[0].as_numpy().tolist()
    for number in range(start, 0, -1):
        if sender.is_cancelled():
            break
        output = pb_utils.Tensor("NUMBER", np.array([number], np.int32))
        sender.send(pb_utils.InferenceResponse([output]))
        await asyncio.sleep(PAUSE_S)
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
