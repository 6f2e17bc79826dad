# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as triton

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
rows = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)

with triton.InferenceServerClient(url) as client:
    config = client.get_model_config("xor")
    x = triton.InferInput("X", rows.shape, "FP32")
    x.set_data_from_numpy(rows)
    answers = client.infer("xor", [x]).as_numpy("Y")

print(f"{config['backend']} found {config['input'][0]['name']} {config['input'][0]['dims']}")
for (left, right), answer in zip(rows, answers[:, 0], strict=True):
    print(f"{left:.0f} xor {right:.0f} = {answer:.0f}")
print("PASS: onnx")
