# SPDX-License-Identifier: Apache-2.0
import secrets
import sys
import time

import numpy as np

from pytriton.client import ModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
# A client that uses OpenTelemetry gets this header from `opentelemetry.propagate.inject`.
trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
headers = {"traceparent": f"00-{trace_id}-{span_id}-01"}

with ModelClient(url, "Normalise") as client:
    client.infer_sample(np.array([1, 2, 6], np.float32), headers=headers)

with ModelClient(url, "Spans") as client:
    tree = ""
    deadline = time.monotonic() + 30
    while tree.count("\n") < 6 and time.monotonic() < deadline:  # they are sent a little later
        span = np.array([f"{trace_id}-{span_id}".encode()])
        tree = client.infer_sample(span)["tree"].item().decode()
        time.sleep(0.05)

print(tree)
