# SPDX-License-Identifier: Apache-2.0
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in range(int(pb_utils.get_input_tensor_by_name(request, "n").as_numpy()[0])):
                tensor = pb_utils.Tensor("value", np.array([value], np.int32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
