# SPDX-License-Identifier: Apache-2.0
"""Takes a request as often as its number says, and tells what it saw each time."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

RAISES, FAILS, ANSWERS_TOO = 77, 78, 79
PASSES = {RAISES: 2, FAILS: 2, ANSWERS_TOO: 2}


class TritonPythonModel:
    """Counts passes by correlation id."""

    def initialize(self, args):
        self.passes = {}

    def execute(self, requests):
        return [self._pass(request) for request in requests]

    def _pass(self, request):
        wanted = int(request.inputs()[0].as_numpy().ravel()[0])
        passes = self.passes.setdefault(request.correlation_id(), [])
        passes.append({"flags": request.flags(), "id": request.request_id()})
        if len(passes) < PASSES.get(wanted, wanted):
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return self._misbehave(wanted)
        text = json.dumps(self.passes.pop(request.correlation_id()))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", np.array([[text]], dtype=object))]
        )

    def _misbehave(self, wanted):
        if wanted in PASSES:
            self.passes.clear()
        if wanted == RAISES:
            raise ValueError("while rescheduling")
        if wanted == FAILS:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError("failed while rescheduling")
            )
        if wanted == ANSWERS_TOO:
            return pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", np.array([[b"early"]], dtype=object))]
            )
        return None
