# SPDX-License-Identifier: Apache-2.0
import asyncio
import sys

import numpy as np

from pytriton.client import AsyncioDecoupledModelClient, DecoupledModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "grpc://127.0.0.1:8001"


def prompt(text):
    return np.array([text.encode()], dtype=np.object_)


def read(text):
    with DecoupledModelClient(url, "Backwards") as client:
        for response in client.infer_sample(prompt=prompt(text)):
            print(response["text"].item().decode(), end=" ", flush=True)
    print()


async def read_async(text):
    async with AsyncioDecoupledModelClient(url, "Backwards") as client:
        responses = client.infer_sample(prompt=prompt(text))
        return " ".join([response["text"].item().decode() async for response in responses])


async def read_both():
    print(await asyncio.gather(read_async("two are one"), read_async("time a at")))


read("streaming are words these")
asyncio.run(read_both())
