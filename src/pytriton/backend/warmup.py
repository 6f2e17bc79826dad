# SPDX-License-Identifier: Apache-2.0
"""The requests that a callable answers before its model is ready.

A warm-up that fails is logged and does not keep the model from being served.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from pytriton.model_config.common import ModelWarmup, generate_warmup_requests
from pytriton.proxy.types import Request

logger = logging.getLogger(__name__)


def warm_up(
    model_name: str,
    warmups: Sequence[ModelWarmup],
    call: Callable[[list[Request]], object],
    input_specs: Sequence[Any] = (),
) -> int:
    """Send one instance of a model its warm-up requests, one after the other.

    Args:
        model_name: name of the model, for the log.
        warmups: warm-ups in the order in which they run.
        call: executes a list of requests to its end, as `call_to_completion` does; the callable has
            its context already.
        input_specs: inputs of the model; where given, a warm-up that names others fails.

    Returns:
        The number of requests that were answered.
    """
    return sum(_answered(model_name, warmup, call, input_specs) for warmup in warmups)


def _answered(
    model_name: str,
    warmup: ModelWarmup,
    call: Callable[[list[Request]], object],
    input_specs: Sequence[Any],
) -> int:
    answered = 0
    try:
        for data in generate_warmup_requests([warmup], input_specs):
            call([Request(data=data, parameters={})])
            answered += 1
    except Exception:
        # Whatever a user's callable raises here, the model may still serve real requests.
        logger.warning(
            "Warm-up %r of model %s failed after %d of %d requests; the model is served anyway",
            warmup.name,
            model_name,
            answered,
            warmup.count,
            exc_info=True,
        )
    return answered


def call_to_completion(infer_func: Callable[..., Any], requests: list[Request]) -> list[Any]:
    """Call a callable of any kind and wait for all that it has to say.

    An asynchronous one runs on an event loop of its own. A host that serves such a callable on a
    loop warms it up on that loop, as what it starts there may have to live on.

    Args:
        infer_func: a function, a generator function, or an asynchronous one of either kind.
        requests: requests to call it with.

    Returns:
        What it returned or yielded, in order.
    """
    result = infer_func(requests)
    if inspect.isgenerator(result):
        return list(result)
    if not inspect.isasyncgen(result) and not inspect.isawaitable(result):
        return [result]
    import asyncio  # noqa: PLC0415  takes 4 MiB that only users of asynchronous callables need

    if inspect.isasyncgen(result):
        return asyncio.run(_collected(result))
    return [asyncio.run(_awaited(result))]


async def _collected(responses: AsyncIterator[Any]) -> list[Any]:
    return [response async for response in responses]


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
