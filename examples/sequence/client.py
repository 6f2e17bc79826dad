# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
SEQUENCES = {"small": [1, 2, 3, 4], "large": [100, 300, 500, 700]}

with ModelClient(url, "Average") as client:
    for index in range(4):
        for name, values in SEQUENCES.items():
            result = client.infer_sample(
                np.array([values[index]], dtype=np.float32),
                parameters={
                    "sequence_id": name,
                    "sequence_start": index == 0,
                    "sequence_end": index == 3,
                },
            )
            print(f"{name}: {result['average'].item():g}", end="  ")
        print()
