# SPDX-License-Identifier: Apache-2.0
"""Sends four requests on one stream and tells their responses, which mix, apart by their ids."""

import argparse
import queue
import sys

import numpy as np
import tritonclient.grpc

VALUES = {"0": 4, "1": 2, "2": 0, "3": 1}  # what is asked, by the id of the request


def send(client, request_id, value):
    tensor = tritonclient.grpc.InferInput("IN", [1], "INT32")
    tensor.set_data_from_numpy(np.array([value], np.int32))
    client.async_stream_infer(
        "square_int32",
        inputs=[tensor],
        outputs=[tritonclient.grpc.InferRequestedOutput("OUT")],
        request_id=request_id,
    )


def square(url):
    arrived = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(url, verbose=True) as client:
        # The callback runs on a thread of the client, with the result or else the error.
        client.start_stream(lambda result, error: arrived.put(error or result))
        for request_id, value in VALUES.items():
            send(client, request_id, value)

        answers = {request_id: [] for request_id in VALUES}
        for _ in range(sum(VALUES.values())):
            result = arrived.get()
            if isinstance(result, Exception):
                sys.exit(f"FAIL: square_int32: {result}")
            answers[result.get_response().id].append(result.as_numpy("OUT").item())

        expected = {request_id: [value] * value for request_id, value in VALUES.items()}
        if answers != expected:
            sys.exit(f"FAIL: square_int32: expected {expected}, got {answers}")
        print("PASS: square_int32")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-u", "--url", default="localhost:8001", help="gRPC address of the server")
    square(parser.parse_args().url)
