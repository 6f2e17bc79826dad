# SPDX-License-Identifier: Apache-2.0
"""Sends two rows to the model, which answers with their halves."""

import sys

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8001"

with InferenceServerClient(url) as client:
    tensor = InferInput("X", [2, 3], "FP32")
    tensor.set_data_from_numpy(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    print(client.infer("halves", [tensor]).as_numpy("Y"))
