# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
with ModelClient(url, "Scale") as client:
    result = client.infer_sample(
        values=np.array([1, 2, 3], np.float32),
        parameters={"factor": 2},
        headers={"x-client": "example"},
    )

print("scaled:", result["scaled"].tolist())
print("note:  ", result["note"].item().decode())
