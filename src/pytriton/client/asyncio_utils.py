# SPDX-License-Identifier: Apache-2.0
"""What `pytriton.client.utils` does, for the asyncio clients of the official package."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from pytriton.client import waiting
from pytriton.client.asyncio_time_limit import AsyncioTimeLimit
from pytriton.client.protocols import address_of, protocol_of
from pytriton.client.utils import ModelState, state_in_index
from pytriton.client.waiting import AS_LONG_AS_IT_TAKES_S, Call, Model, Steps, Wait
from pytriton.model_config.triton_model_config import TritonModelConfig

_DEFAULT_TIMEOUT_S = 60.0

T = TypeVar("T")


async def asyncio_wait_for_server_ready(
    asyncio_client: Any, sleep_time_s: float, headers: Mapping[str, str] | None = None
) -> None:
    """Wait, for as long as it takes, until the server is ready and live.

    Args:
        asyncio_client: an asyncio client of the official package.
        sleep_time_s: pause between two looks.
        headers: headers of the requests.
    """
    address = address_of(asyncio_client)
    wait = Wait(AS_LONG_AS_IT_TAKES_S, pause_s=sleep_time_s, address=address)
    await _carry_out(waiting.server_ready(wait, headers), asyncio_client)


async def asyncio_wait_for_model_status_loaded(
    asyncio_client: Any,
    model_name: str,
    sleep_time_s: float,
    model_version: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Wait, for as long as it takes, until the server and the model are ready.

    Args:
        asyncio_client: an asyncio client of the official package.
        model_name: name of the model.
        sleep_time_s: pause between two looks.
        model_version: version of the model; default is the latest.
        headers: headers of the requests.
    """
    address = address_of(asyncio_client)
    wait = Wait(AS_LONG_AS_IT_TAKES_S, pause_s=sleep_time_s, address=address)
    model = Model(model_name, model_version)
    steps = waiting.model_ready(wait, headers, model, protocol_of(asyncio_client))
    await _carry_out(steps, asyncio_client)


async def asyncio_wait_for_model_ready(
    asyncio_client: Any,
    model_name: str,
    model_version: str | None = None,
    timeout_s: float = _DEFAULT_TIMEOUT_S,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Like `utils.wait_for_model_ready`, but 60 s by default.

    Args:
        asyncio_client: an asyncio client of the official package.
        model_name: name of the model.
        model_version: version of the model; default is the latest.
        timeout_s: time allowed for the server and the model.
        headers: headers of the requests.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time.
        PyTritonClientModelUnavailableError: The model was not.
    """
    model = Model(model_name, model_version)
    wait = Wait(timeout_s, address=address_of(asyncio_client))
    steps = waiting.model_ready(wait, headers, model, protocol_of(asyncio_client))
    await _carry_out(steps, asyncio_client)


async def asyncio_get_model_config(
    client: Any,
    model_name: str,
    model_version: str | None = None,
    timeout_s: float = _DEFAULT_TIMEOUT_S,
    headers: Mapping[str, str] | None = None,
) -> TritonModelConfig:
    """Like `utils.get_model_config`, but 60 s by default.

    Args:
        client: an asyncio client of the official package.
        model_name: name of the model.
        model_version: version of the model; default is the latest.
        timeout_s: time allowed for everything.
        headers: headers of the requests.

    Returns:
        The configuration.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time, or did not answer.
        PyTritonClientModelUnavailableError: The model was not ready in time.
        PyTritonClientInferenceServerError: The server refused to tell the configuration.
    """
    wait = Wait(timeout_s, address=address_of(client))
    model = Model(model_name, model_version)
    steps = waiting.model_config(wait, headers, model, protocol_of(client))
    return await _carry_out(steps, client)


async def asyncio_get_model_state(
    client: Any,
    model_name: str,
    model_version: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> ModelState:
    """Like `utils.get_model_state`.

    Args:
        client: an asyncio client of the official package.
        model_name: name of the model.
        model_version: version of the model; default is the latest.
        headers: headers of the request; the index usually asks for an access token.

    Returns:
        The state; UNAVAILABLE where the index does not have the model.
    """
    index = await client.get_model_repository_index(headers=headers)
    return state_in_index(protocol_of(client), index, model_name, model_version)


def refusals_of(client: Any) -> tuple[type[Exception], ...]:
    """What calls raise where there is no answer or an error for one."""
    protocol = protocol_of(client)
    # asyncio's TimeoutError is the builtin one, an OSError, from Python 3.11 on only.
    return (
        *protocol.asyncio_errors(),
        asyncio.TimeoutError,
        protocol.library.InferenceServerException,
    )


async def _carry_out(steps: Steps[T], client: Any) -> T:
    """Make the calls and the pauses of a wait."""
    failures = (*refusals_of(client), *protocol_of(client).unreadable)
    outcome: Any = None
    while True:
        try:
            step = steps.send(outcome)
        except StopIteration as end:
            result: T = end.value
            return result
        outcome = None
        if isinstance(step, Call):
            call = getattr(client, step.method)(*step.arguments, **step.named_arguments)
            try:
                with AsyncioTimeLimit(step.limit_s):
                    outcome = await call
            except failures as error:
                outcome = error
        else:
            await asyncio.sleep(step)
