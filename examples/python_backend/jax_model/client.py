# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as triton

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
points = np.array([[0, 0], [1, 1], [2, 1]], np.float32)

with triton.InferenceServerClient(url) as client:
    tensor = triton.InferInput("POINT", points.shape, "FP32").set_data_from_numpy(points)
    result = client.infer("rosenbrock", [tensor])

answers = zip(points, result.as_numpy("VALUE"), result.as_numpy("GRADIENT"), strict=True)
for point, value, gradient in answers:
    print(f"at {point.tolist()}: value {value.item():.0f}, gradient {gradient.round().tolist()}")
