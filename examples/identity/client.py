# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
sent = [b"text", b"", b"\x00\xff\x00", "größe".encode()]
with ModelClient(url, "Identity") as client:
    received = client.infer_sample(data=np.array(sent, dtype=np.object_))["data"].tolist()

print("sent:    ", sent)
print("received:", received)
if received != sent:
    sys.exit("the bytes changed on the way")
