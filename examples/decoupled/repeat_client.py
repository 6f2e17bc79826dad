# SPDX-License-Identifier: Apache-2.0
"""Sends one request and shows that it gets a response for each element of IN, in order."""

import argparse
import queue
import sys

import numpy as np
import tritonclient.grpc

VALUES = [4, 2, 0, 1]
DELAYS_MS = [1, 2, 3, 4]
WAIT_MS = [5]


def tensor(name, values, dtype, triton_dtype):
    item = tritonclient.grpc.InferInput(name, [len(values)], triton_dtype)
    item.set_data_from_numpy(np.array(values, dtype))
    return item


def repeat(url):
    arrived = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(url, verbose=True) as client:
        # The callback runs on a thread of the client, with the result or else the error.
        client.start_stream(lambda result, error: arrived.put(error or result))
        client.async_stream_infer(
            "repeat_int32",
            inputs=[
                tensor("IN", VALUES, np.int32, "INT32"),
                tensor("DELAY", DELAYS_MS, np.uint32, "UINT32"),
                tensor("WAIT", WAIT_MS, np.uint32, "UINT32"),
            ],
            outputs=[tritonclient.grpc.InferRequestedOutput(name) for name in ("OUT", "IDX")],
            request_id="0",
        )
        values = []
        for _ in VALUES:
            result = arrived.get()
            if isinstance(result, Exception):
                sys.exit(f"FAIL: repeat_int32: {result}")
            values.append(result.as_numpy("OUT").item())

        if values != VALUES:
            sys.exit(f"FAIL: repeat_int32: expected {VALUES}, got {values}")
        print("PASS: repeat_int32")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-u", "--url", default="localhost:8001", help="gRPC address of the server")
    repeat(parser.parse_args().url)
