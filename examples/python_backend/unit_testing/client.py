# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as triton

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"

with triton.InferenceServerClient(url) as client:
    inputs = [triton.InferInput(name, [2, 1], "FP32") for name in ("PART", "WHOLE")]
    inputs[0].set_data_from_numpy(np.array([[1], [2]], np.float32))
    inputs[1].set_data_from_numpy(np.array([[3], [3]], np.float32))
    result = client.infer("percent", inputs, parameters={"digits": 0})

print(result.as_numpy("PERCENT").tolist())
