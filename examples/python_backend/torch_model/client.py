# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as triton

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)

with triton.InferenceServerClient(url) as client:
    tensor = triton.InferInput("X", x.shape, "FP32").set_data_from_numpy(x)
    y = client.infer("xor", [tensor]).as_numpy("Y")

for (a, b), (result,) in zip(x, y, strict=True):
    print(f"{a:.0f} xor {b:.0f} = {result:.0f}")
