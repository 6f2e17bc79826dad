# SPDX-License-Identifier: Apache-2.0
import asyncio
from pathlib import Path

import numpy as np

import tritonserver

MODELS = Path(__file__).with_name("models")


async def read_aloud(model, text):
    async for response in model.async_infer(inputs={"TEXT": [text]}):
        if response.outputs:
            print("word:", response.outputs["WORD"].to_string_array()[0])


def main():
    server = tritonserver.Server(model_repository=str(MODELS))
    server.start(wait_until_ready=True)
    print("models:", *sorted(name for name, _ in server.models()))

    power = server.model("power")
    (response,) = power.infer(inputs={"X": np.arange(4.0)})
    print("squares:", np.from_dlpack(response.outputs["Y"]))

    asyncio.run(read_aloud(server.model("words"), "no port was opened"))

    count = power.statistics()["model_stats"][0]["inference_count"]
    print("requests of power:", count)
    server.stop()


if __name__ == "__main__":
    main()
