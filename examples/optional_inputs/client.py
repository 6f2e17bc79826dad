# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
base = np.array([1, 2, 3], np.float32)
with ModelClient(url, "Power") as client:
    squares = client.infer_sample(base=base)["power"]
    cubes = client.infer_sample(base=base, exponent=np.array([3], np.float32))["power"]

print("squares:", squares.tolist())
print("cubes:  ", cubes.tolist())
