# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as triton_http

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
with triton_http.InferenceServerClient(address) as client:
    inputs = []
    for name, value in (("a", 40.0), ("b", 2.0)):
        tensor = triton_http.InferInput(name, [1, 1], "FP32")
        tensor.set_data_from_numpy(np.array([[value]], dtype=np.float32))
        inputs.append(tensor)
    result = client.infer("AddSub", inputs)

print("add:", result.as_numpy("add").item())
print("sub:", result.as_numpy("sub").item())
