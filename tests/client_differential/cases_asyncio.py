# SPDX-License-Identifier: Apache-2.0
"""Asyncio: calls side by side, cancelled ones, and a client that is closed."""

from __future__ import annotations

import asyncio
from typing import Any

from pytriton.client import AsyncioModelClient
from tests.client_differential.case import stepped_async
from tests.client_differential.cases_inputs import A, B
from tests.client_differential.cases_waiting import SHORT_INFERENCE_S, TOO_LONG_S, seconds
from tests.client_differential.outcome import attempt_async

UNDER_WAY_S = 0.3  # after this a request has been sent; it does not matter if it has not


async def gathered(url: str) -> Any:
    async with AsyncioModelClient(url, "AddSub") as client:
        return await asyncio.gather(*(attempt_async(client.infer_sample(A, B)) for _ in range(16)))


async def gathered_with_errors(url: str) -> Any:
    async with AsyncioModelClient(url, "AddSub") as client:
        calls = (client.infer_sample(A), client.infer_sample())
        return await asyncio.gather(*map(attempt_async, calls))


async def closed_twice(url: str) -> Any:
    client = AsyncioModelClient(url, "AddSub")
    found = [await attempt_async(client.infer_sample(A, B))]
    await client.close()
    return [*found, await attempt_async(client.close())]


async def used_after_close(url: str) -> Any:
    client = AsyncioModelClient(url, "AddSub", init_timeout_s=0.5)
    await client.close()
    return [
        await attempt_async(client.infer_sample(A, B)),
        await attempt_async(client.wait_for_model(0.3)),
        await attempt_async(client.model_config),
    ]


async def cancelled(url: str) -> Any:
    async with AsyncioModelClient(url, "SlowAsyncio") as client:
        task = asyncio.create_task(client.infer_sample(seconds(TOO_LONG_S)))
        await asyncio.wait({task}, timeout=UNDER_WAY_S)
        task.cancel()
        found = await asyncio.gather(task, return_exceptions=True)
        return [type(found[0]).__name__, await attempt_async(client.infer_sample(seconds(0.01)))]


async def given_less_time(url: str) -> Any:
    async with AsyncioModelClient(url, "SlowAsyncio") as client:
        await client.model_config
        found = await attempt_async(
            asyncio.wait_for(client.infer_sample(seconds(TOO_LONG_S)), SHORT_INFERENCE_S)
        )
        return [found, await attempt_async(client.infer_sample(seconds(0.01)))]


async def eager_without_context(url: str) -> Any:
    client = AsyncioModelClient(url, "AddSub", lazy_init=False)
    found = await attempt_async(client.infer_sample(A, B))
    await client.close()
    return found


CASES = (
    *stepped_async("gathered", gathered),
    *stepped_async("gathered with errors", gathered_with_errors),
    *stepped_async("asyncio, closed twice", closed_twice),
    *stepped_async("asyncio, used after close", used_after_close, is_slow=True),
    *stepped_async("asyncio, cancelled", cancelled, is_slow=True),
    *stepped_async("asyncio, given less time", given_less_time, is_slow=True),
    *stepped_async("asyncio, at once without context", eager_without_context),
)
