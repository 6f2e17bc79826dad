# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""Usage: ray_serve_app.py HTTP_PORT CLUSTER   serves AddSub with Ray Serve on a running cluster.

It is written as Ray Serve's own pages advise: an asynchronous method takes the requests, a batched
one computes with arrays. The settings are those with which it was fastest: no wait for a batch to
fill, no limit of requests under way that this load would reach, and no log line for each request.
If HAProxy is its front end, requests reach the replica directly; that needs all interfaces.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np
import ray
from ray import serve
from starlette.requests import Request

MOST_UNDER_WAY = 1000
LOGGING = {"enable_access_log": False, "log_level": "WARNING"}


@serve.deployment(
    max_ongoing_requests=MOST_UNDER_WAY,
    ray_actor_options={"num_cpus": 1},
    logging_config=LOGGING,
)
class AddSub:
    """Has one replica, as the others have one instance."""

    @serve.batch(max_batch_size=128, batch_wait_timeout_s=0)
    async def add_sub(self, pairs: list[dict[str, float]]) -> list[dict[str, float]]:
        a = np.array([pair["a"] for pair in pairs], np.float32)
        b = np.array([pair["b"] for pair in pairs], np.float32)
        sums, differences = (a + b).tolist(), (a - b).tolist()
        return [{"add": s, "sub": d} for s, d in zip(sums, differences, strict=True)]

    async def __call__(self, request: Request) -> Any:
        if request.method == "GET":  # whoever waits until this is ready
            return "ready"
        return await self.add_sub(await request.json())


def main() -> None:
    port, address = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ray.init(address=address, log_to_driver=False, namespace="benchmark")
    is_direct = os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"
    host = {} if is_direct else {"host": "127.0.0.1"}
    serve.start(http_options={"port": int(port), **host}, logging_config=LOGGING)
    serve.run(AddSub.bind(), route_prefix="/v2")
    try:
        signal.pause()
    except KeyboardInterrupt:
        serve.shutdown()


if __name__ == "__main__":
    main()
