# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as triton

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
a = np.array([1, 2, 3, 4], np.float32)
b = np.array([4, 3, 2, 1], np.float32)

with triton.InferenceServerClient(url) as client:
    inputs = [triton.InferInput(name, [4], "FP32") for name in ("INPUT0", "INPUT1")]
    inputs[0].set_data_from_numpy(a)
    inputs[1].set_data_from_numpy(b)
    result = client.infer("add_sub", inputs)

print(f"{a} + {b} = {result.as_numpy('OUTPUT0')}")
print(f"{a} - {b} = {result.as_numpy('OUTPUT1')}")
print("PASS: add_sub")
