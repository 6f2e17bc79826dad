# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as triton_http

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
sent = [b"text", b"", b"\x00\xff\x00", "größe".encode()]
with triton_http.InferenceServerClient(address) as client:
    tensor = triton_http.InferInput("data", [1, len(sent)], "BYTES")
    tensor.set_data_from_numpy(np.array([sent], dtype=np.object_))
    received = client.infer("Identity", [tensor]).as_numpy("data")[0].tolist()

print("sent:    ", sent)
print("received:", received)
if received != sent:
    sys.exit("the bytes changed on the way")
