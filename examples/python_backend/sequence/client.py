# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.grpc as triton

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8001"
SEQUENCES = {1: [1, 2, 3, 4], 2: [100, 300, 500, 700]}
averages = {}


def keep(result, error):
    if error is not None:
        raise error
    response = result.get_response()
    averages.setdefault(response.id, []).append(result.as_numpy("AVERAGE").item())


# One stream carries the requests of both sequences.
with triton.InferenceServerClient(url) as client:
    client.start_stream(keep)
    for index in range(4):
        for number, values in SEQUENCES.items():
            tensor = triton.InferInput("VALUE", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.array([[values[index]]], dtype=np.float32))
            client.async_stream_infer(
                "average",
                [tensor],
                request_id=f"sequence {number}",
                sequence_id=number,
                sequence_start=index == 0,
                sequence_end=index == 3,
            )
    client.stop_stream()

for name in sorted(averages):
    print(f"{name}: {averages[name]}")
