# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as triton_http

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
samples = np.ones((3, 20), dtype=np.float32)
with triton_http.InferenceServerClient(address) as client:
    tensor = triton_http.InferInput("features", samples.shape, "FP32")
    tensor.set_data_from_numpy(samples)
    scores = client.infer("Linear", [tensor]).as_numpy("scores")

print("scores:", scores.shape, "best class of each sample:", scores.argmax(axis=1).tolist())
