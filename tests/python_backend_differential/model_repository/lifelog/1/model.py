# SPDX-License-Identifier: Apache-2.0
"""Logs its life, calls another model where that is not allowed, and fails to finish."""

import numpy as np
import triton_python_backend_utils as pb_utils


def call_another():
    number = pb_utils.Tensor("NUMBERS", np.zeros(1, np.int32))
    request = pb_utils.InferenceRequest(
        model_name="renamed", inputs=[number], requested_output_names=["OUT"]
    )
    try:
        return f"{len(request.exec().output_tensors())} tensors"
    except pb_utils.TritonModelException as error:
        return str(error)


class TritonPythonModel:
    """A talker."""

    def __init__(self):
        self.was_made = True

    def initialize(self, args):
        pb_utils.Logger.log_info("life: initialize")
        pb_utils.Logger.log_info(f"life: made {self.was_made}")
        pb_utils.Logger.log_warn(f"life: call while starting: {call_another()}")

    def execute(self, requests):
        pb_utils.Logger.log_info("life: execute")
        pb_utils.Logger.log_verbose("life: verbose")
        text = np.array([call_another()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]

    def finalize(self):
        pb_utils.Logger.log_error("life: finalize")
        pb_utils.Logger.log_info(f"life: call while ending: {call_another()}")
        raise ValueError("life: never mind")
