# SPDX-License-Identifier: Apache-2.0
import asyncio
import pathlib
import tempfile

import numpy as np

from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

TRACES = pathlib.Path(tempfile.gettempdir()) / "slow_requests.json"
SETTINGS = {
    "trace_config": [f"triton,file={TRACES}", "level=TIMESTAMPS", "rate=1"],
    "metrics_config": ["slow_request_seconds=2"],
}


async def work(requests):
    """Computes for as long as the slowest request of the batch asks for."""
    seconds = max(float(request["seconds"].max()) for request in requests)
    if seconds:
        await asyncio.sleep(seconds)
    return [{"seconds": request["seconds"]} for request in requests]


def bind(triton, max_batch_size=1):
    row = Tensor(name="seconds", dtype=np.float32, shape=(1,))
    triton.bind("Work", work, [row], [row], config=ModelConfig(max_batch_size=max_batch_size))


if __name__ == "__main__":
    with Triton(config=TritonConfig(**SETTINGS)) as triton:
        bind(triton)
        triton.serve()
