# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
values = np.array([2, 4, 4, 4, 5, 5, 7, 9], np.float32)
for name, version in (("Mean", None), ("Spread", "1"), ("Spread", "2")):
    with ModelClient(url, name, version) as client:
        result = client.infer_sample(values=values)["result"].item()
    print(name, version or "(newest)", result)
