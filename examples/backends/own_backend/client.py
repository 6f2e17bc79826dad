# SPDX-License-Identifier: Apache-2.0
"""Asks for two keys of the table, then for one that is not there."""

import sys

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8001"

with InferenceServerClient(url) as client:
    for keys in (["lima", "tokyo"], ["atlantis"]):
        tensor = InferInput("KEY", [len(keys), 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[key.encode()] for key in keys], object))
        try:
            rows = client.infer("capitals", [tensor]).as_numpy("NUMBERS")
            for key, row in zip(keys, rows, strict=True):
                print(key, row)
        except InferenceServerException as error:
            print(error.status(), error.message())
