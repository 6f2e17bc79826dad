# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np

from pytriton.client import FuturesModelClient, ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
images = [np.full(64, number, np.float32) for number in range(32)]
with FuturesModelClient(url, "Score", max_workers=8) as client:
    (instances,) = client.model_config().result().instance_group.values()
    answers = [client.infer_sample(image=image) for image in images]
    scores = [answer.result()["score"].item() for answer in answers]
with ModelClient(url, "Add") as client:
    total = client.infer_sample(a=np.float32([1]), b=np.float32([2]))["sum"].item()

print("instances:", instances)
print("first and last score:", scores[0], scores[-1])
print("sum:", total)
