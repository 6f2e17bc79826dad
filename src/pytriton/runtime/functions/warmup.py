# SPDX-License-Identifier: Apache-2.0
"""Warm-up requests, which a callable executes before its model is ready.

A warm-up that fails is logged; the model is served anyway.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from pytriton.model_config.common import ModelWarmup, generate_warmup_requests
from pytriton.model_config.sequence_batcher import SequenceBatcher
from pytriton.model_config.sequence_message import only_request_inputs
from pytriton.proxy.types import Request

logger = logging.getLogger(__name__)


def warm_up(
    model_name: str,
    warmups: Sequence[ModelWarmup],
    call: Callable[[list[Request]], object],
    input_specs: Sequence[Any] = (),
    sequence: SequenceBatcher | None = None,
) -> int:
    """Send one instance of a model its warm-up requests, one after the other.

    Args:
        model_name: name of the model, for the log.
        warmups: warm-ups in the order in which they run.
        call: executes a list of requests completely, like `call_to_completion`; the context of the
            callable is already set.
        input_specs: inputs of the model; if given, a warm-up with other inputs fails.
        sequence: settings of sequences; each request is then a whole sequence.

    Returns:
        The number of requests that were answered.
    """
    return sum(_answered(model_name, warmup, call, input_specs, sequence) for warmup in warmups)


def _answered(
    model_name: str,
    warmup: ModelWarmup,
    call: Callable[[list[Request]], object],
    input_specs: Sequence[Any],
    sequence: SequenceBatcher | None,
) -> int:
    answered = 0
    try:
        for data in generate_warmup_requests([warmup], input_specs):
            if sequence is not None:
                data.update(only_request_inputs(sequence, warmup.batch_size))
            call([Request(data=data, parameters={})])
            answered += 1
    except Exception:
        # Despite any exception here, the model may be able to serve real requests.
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
    """Call a callable of any kind and wait for all its results.

    An asynchronous callable runs on a new event loop. A host that serves such a callable on an
    event loop warms it up on that loop, because tasks that it starts may have to stay alive.

    Args:
        infer_func: a function, a generator function, or an asynchronous version of either.
        requests: requests to call it with.

    Returns:
        The returned or yielded results, in order.
    """
    result = infer_func(requests)
    if inspect.isgenerator(result):
        return list(result)
    if not inspect.isasyncgen(result) and not inspect.isawaitable(result):
        return [result]
    import asyncio  # noqa: PLC0415  takes 4 MiB, needed only for async callables

    if inspect.isasyncgen(result):
        return asyncio.run(_collected(result))
    return [asyncio.run(_awaited(result))]


async def _collected(responses: AsyncIterator[Any]) -> list[Any]:
    return [response async for response in responses]


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
