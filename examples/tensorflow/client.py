# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
images = np.linspace(0, 1, 3 * 28 * 28, dtype=np.float32).reshape(3, -1)
with ModelClient(url, "Classifier") as client:
    probabilities = client.infer_batch(images)["probabilities"]

print("shape:", probabilities.shape, "sums:", probabilities.sum(axis=1).round(3).tolist())
