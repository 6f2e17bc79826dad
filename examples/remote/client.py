# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
with ModelClient(url, "Double") as client:
    result = client.infer_sample(x=np.array([21], np.float32))

print("doubled:", result["doubled"].item())
