# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
values = np.array([1, 2, 6], np.float32)


def ask(model, **arrays):
    inputs = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    return client.infer(model, inputs)


def ask_by_name(name):
    try:
        answer = ask("bls_sync", MODEL_NAME=np.array([name], np.object_), VALUES=values)
    except InferenceServerException as error:
        return error.message()
    return answer.as_numpy("RESULT").item()


with triton.InferenceServerClient(url) as client:
    for name in (b"mean", b"median", b"mode"):
        print(f"bls_sync, {name.decode()}: {ask_by_name(name)}")

    answer = ask("bls_async", VALUES=values)
    print("bls_async:", answer.as_numpy("MEAN").item(), answer.as_numpy("MEDIAN").item())

    for start in (4, 0):
        answer = ask("bls_decoupled", START=np.array([start], np.int32))
        print(f"bls_decoupled, {start}: {answer.as_numpy('SUM').item()}")
print("PASS: bls")
