# SPDX-License-Identifier: Apache-2.0
"""All slow requests among many are found from the metrics alone, with their traces.

`PYTRITON_SLOW_REQUESTS_AMONG=100000` sends as many requests.
"""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from examples.slow_requests import client, find_slow, server
from tests.e2e.waiting import eventually

COUNT = int(os.environ.get("PYTRITON_SLOW_REQUESTS_AMONG", "3000"))
SLOW, SECONDS, LIMIT_S = 100, 0.05, 0.04
SHOWN = 128  # slow requests of a model on a page


def written_traces(path):
    """Returns the traces of a file; none while the server writes to it, or before."""
    try:
        return find_slow.read_traces(path)
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


@pytest.mark.parametrize("max_batch_size", [1, 16], ids=["alone", "columns"])
@pytest.mark.parametrize("frontend_processes", [0, 2], ids=["one-process", "front-ends"])
def test_every_slow_request_is_found_with_its_trace(
    run_triton, tmp_path, max_batch_size, frontend_processes
):
    path = tmp_path / "trace.json"
    triton = run_triton(
        metrics_config=[f"slow_request_seconds={LIMIT_S}"],
        trace_config=[f"triton,file={path}", "level=TIMESTAMPS", "rate=1"],
        frontend_processes=frontend_processes,
    )
    server.bind(triton, max_batch_size)
    config = triton._config
    url = f"http://127.0.0.1:{config.metrics_port}/metrics"
    slow = find_slow.SlowRequests()

    async def scrape() -> str:
        page = await asyncio.to_thread(find_slow.scrape, url)
        slow.add(page)
        return page

    async def send() -> str:
        """Send all, with a look at the page during and after each part of them.

        On a busy machine all requests may be slow, and a page has so many at least.
        """
        for first in range(0, COUNT, SHOWN):
            numbers = iter(range(first, min(first + SHOWN, COUNT)))
            clients = [
                client.ask("127.0.0.1", config.http_port, numbers, COUNT // SLOW, SECONDS)
                for _ in range(client.CONNECTIONS)
            ]
            await asyncio.gather(scrape(), *clients)
            page = await scrape()
        return page

    page = asyncio.run(send())
    found = {one.request_id: one for one in slow.found}
    injected = [found[f"slow-{number}"] for number in range(SLOW)]
    assert eventually(lambda: len(written_traces(path)) == COUNT)
    traces = find_slow.read_traces(path)

    assert slow.missed == 0
    for one in injected:
        times = traces[one.trace_id]
        assert times["COMPUTE_END"] - times["QUEUE_START"] >= LIMIT_S * 1e9
        assert one.seconds >= LIMIT_S
    if max_batch_size > 1:
        assert 'path="columns"' in page
