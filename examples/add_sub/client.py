# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
with ModelClient(url, "AddSub") as client:
    result = client.infer_sample(a=np.array([40], np.float32), b=np.array([2], np.float32))

print("add:", result["add"].item())
print("sub:", result["sub"].item())
