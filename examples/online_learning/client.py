# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
truth = np.array([[1], [-2], [3]], np.float32)
generator = np.random.default_rng(seed=0)
question = np.array([1, 1, 1], np.float32)

with ModelClient(url, "Predict") as predict, ModelClient(url, "Learn") as learn:
    print(f"before: {predict.infer_sample(x=question)['y'].item():.2f}")
    for _ in range(200):
        x = generator.standard_normal((64, 3), dtype=np.float32)
        learn.infer_batch(x=x, y=x @ truth)
    print(f"after:  {predict.infer_sample(x=question)['y'].item():.2f}")
