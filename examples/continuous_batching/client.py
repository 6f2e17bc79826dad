# SPDX-License-Identifier: Apache-2.0
import asyncio
import sys

import numpy as np

from pytriton.client import AsyncioDecoupledModelClient

url = sys.argv[1] if len(sys.argv) > 1 else "grpc://127.0.0.1:8001"
model = sys.argv[2] if len(sys.argv) > 2 else "Tokens"
MANY = 1_000_000


def generate(client, prompt, count):
    prompt = np.array([prompt.encode()], dtype=np.object_)
    return client.infer_sample(prompt=prompt, count=np.array([count], np.int32))


async def read_until(responses, batch_size):
    """Read tokens until the batch has this size."""
    async for response in responses:
        if response["batch_size"].item() == batch_size:
            return


async def main():
    async with AsyncioDecoupledModelClient(url, model) as client:
        first = generate(client, "a", MANY)
        await read_until(first, 1)
        print("The first request is alone in the batch.")

        second = generate(client, "b", MANY)
        await read_until(second, 2)
        print("The second one joins it.")

        short = [response async for response in generate(client, "abc", 5)]
        print("A short one gets", "".join(each["token"].item().decode() for each in short))
        print("in a batch of", {each["batch_size"].item() for each in short}, "and leaves.")

        await read_until(first, 2)
        await second.aclose()
        await read_until(first, 1)
        print("The second one is cancelled, and the first is alone again.")
        await first.aclose()


asyncio.run(main())
