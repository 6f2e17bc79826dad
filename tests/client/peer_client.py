# SPDX-License-Identifier: Apache-2.0
"""peer_client.py HTTP_URL GRPC_URL: what the clients of the `pytriton` at hand get from a server.

It runs with this package and with NVIDIA PyTriton, and prints one JSON object with the same keys.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings

import numpy as np

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)

warnings.simplefilter("ignore")
A = np.array([1, 2], np.float32)
WORDS = np.array([b"one", b"two\x00"], dtype=object)
N = np.array([3], np.int32)


def plain(result):
    def text(value):
        return value.decode() if isinstance(value, bytes) else value

    return {
        name: [list(array.shape), str(array.dtype), [text(v) for v in array.ravel().tolist()]]
        for name, array in result.items()
    }


def outcome(call):
    try:
        return plain(call())
    except Exception as error:  # noqa: BLE001  the kind of error is the outcome
        return type(error).__name__


def synchronous(url):
    found = {}
    with ModelClient(url, "AddSub", init_timeout_s=20) as client:
        found["sample"] = outcome(lambda: client.infer_sample(A, A))
        found["batch"] = outcome(lambda: client.infer_batch(a=A[None], b=A[None]))
        found["no input"] = outcome(client.infer_sample)
        found["mixed"] = outcome(lambda: client.infer_sample(A, b=A))
        found["wrong type"] = outcome(lambda: client.infer_sample(A.astype(np.int64), A))
        large = np.zeros((17, 2), np.float32)
        found["too large"] = outcome(lambda: client.infer_batch(large, large))
        found["bad parameters"] = outcome(lambda: client.infer_sample(A, A, parameters=[1]))
        config = client.model_config
        found["config"] = [config.model_name, config.max_batch_size, config.decoupled]
    found["closed"] = outcome(lambda: client.infer_sample(A, A))
    for model, inputs in (
        ("Text", (WORDS,)),
        ("Plain", (A,)),
        ("Optional", (A,)),
        ("Failing", (A,)),
        ("Counter", (N,)),
    ):
        with ModelClient(url, model, init_timeout_s=20) as client:
            found[model] = outcome(lambda c=client, i=inputs: c.infer_sample(*i))
    with ModelClient(url, "Plain") as client:
        found["no batching"] = outcome(lambda: client.infer_batch(A))
    with ModelClient(url, "Parameters") as client:
        settings = {"parameters": {"p": 1}, "headers": {"x-h": "2"}}
        found["parameters"] = outcome(lambda: client.infer_sample(A, **settings))
    return found


def futures(url):
    # The original's further threads forget the protocol, so it gets one.
    with FuturesModelClient(url, "AddSub", max_workers=1) as client:
        pending = [client.infer_sample(A, A) for _ in range(8)]
        return [plain(future.result()) for future in pending]


async def asynchronous(url):
    async with AsyncioModelClient(url, "AddSub") as client:
        results = await asyncio.gather(*(client.infer_sample(A, A) for _ in range(8)))
        return [plain(result) for result in results]


def stream(url):
    with DecoupledModelClient(url, "Counter") as client:
        return [plain(response) for response in client.infer_sample(N)]


async def asynchronous_stream(url):
    async with AsyncioDecoupledModelClient(url, "Counter") as client:
        return [plain(response) async for response in client.infer_sample(N)]


def main():
    found = {}
    for url in sys.argv[1:]:
        scheme = url.split(":")[0]
        found[scheme] = synchronous(url)
        found[f"{scheme} futures"] = futures(url)
        found[f"{scheme} asyncio"] = asyncio.run(asynchronous(url))
    found["stream"] = stream(sys.argv[2])
    found["asyncio stream"] = asyncio.run(asynchronous_stream(sys.argv[2]))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
