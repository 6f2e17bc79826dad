# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
with ModelClient(url, "Linear") as client:
    scores = client.infer_batch(features=np.ones((3, 20), np.float32))["scores"]

print("scores:", scores.shape, "best class of each sample:", scores.argmax(axis=1).tolist())
