# SPDX-License-Identifier: Apache-2.0
"""The functions of `pytriton.client.utils` for the asyncio clients of the official package."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from pytriton.client import waiting
from pytriton.client.asyncio_connections import AsyncioTimeLimit
from pytriton.client.protocols import address_of, call_errors, protocol_of
from pytriton.client.utils import ModelState, state_in_index
from pytriton.client.waiting import NO_TIMEOUT_S, ClientCall, ModelVersion, ReadinessWait, Steps
from pytriton.model_config.triton_model_config import TritonModelConfig

_DEFAULT_TIMEOUT_S = 60.0

T = TypeVar("T")


async def asyncio_wait_for_server_ready(
    asyncio_client: Any, sleep_time_s: float, headers: Mapping[str, str] | None = None
) -> None:
    """Wait without a timeout until the server is ready and live.

    Args:
        asyncio_client: an asyncio client of the official package.
        sleep_time_s: pause between two checks.
        headers: headers of the requests.
    """
    address = address_of(asyncio_client)
    wait = ReadinessWait(NO_TIMEOUT_S, pause_s=sleep_time_s, address=address)
    await _run_steps(waiting.server_ready(wait, headers), asyncio_client)


async def asyncio_wait_for_model_status_loaded(
    asyncio_client: Any,
    model_name: str,
    sleep_time_s: float,
    model_version: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Wait without a timeout until the server and the model are ready.

    Args:
        asyncio_client: an asyncio client of the official package.
        model_name: name of the model.
        sleep_time_s: pause between two checks.
        model_version: version of the model; default is the latest.
        headers: headers of the requests.
    """
    address = address_of(asyncio_client)
    wait = ReadinessWait(NO_TIMEOUT_S, pause_s=sleep_time_s, address=address)
    model = ModelVersion(model_name, model_version)
    steps = waiting.model_ready(wait, headers, model)
    await _run_steps(steps, asyncio_client)


async def asyncio_wait_for_model_ready(
    asyncio_client: Any,
    model_name: str,
    model_version: str | None = None,
    timeout_s: float = _DEFAULT_TIMEOUT_S,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Like `utils.wait_for_model_ready`, with a default timeout of 60 s.

    Args:
        asyncio_client: an asyncio client of the official package.
        model_name: name of the model.
        model_version: version of the model; default is the latest.
        timeout_s: timeout for the server and the model together.
        headers: headers of the requests.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time.
        PyTritonClientModelUnavailableError: The model was not ready in time.
    """
    model = ModelVersion(model_name, model_version)
    wait = ReadinessWait(timeout_s, address=address_of(asyncio_client))
    steps = waiting.model_ready(wait, headers, model)
    await _run_steps(steps, asyncio_client)


async def asyncio_get_model_config(
    client: Any,
    model_name: str,
    model_version: str | None = None,
    timeout_s: float = _DEFAULT_TIMEOUT_S,
    headers: Mapping[str, str] | None = None,
) -> TritonModelConfig:
    """Like `utils.get_model_config`, with a default timeout of 60 s.

    Args:
        client: an asyncio client of the official package.
        model_name: name of the model.
        model_version: version of the model; default is the latest.
        timeout_s: timeout of the whole operation.
        headers: headers of the requests.

    Returns:
        The configuration.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time, or did not answer.
        PyTritonClientModelUnavailableError: The model was not ready in time.
        PyTritonClientInferenceServerError: The server refused the request for the configuration.
    """
    wait = ReadinessWait(timeout_s, address=address_of(client))
    model = ModelVersion(model_name, model_version)
    return await asyncio_wait_for_model_config(client, model, wait, headers)


async def asyncio_wait_for_model_config(
    client: Any, model: ModelVersion, wait: ReadinessWait, headers: Mapping[str, str] | None
) -> TritonModelConfig:
    """Like `asyncio_get_model_config`, with a wait that the caller has made."""
    steps = waiting.model_config(wait, headers, model, protocol_of(client))
    return await _run_steps(steps, client)


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
        headers: headers of the request; the index usually needs an access token.

    Returns:
        The state; UNAVAILABLE if the model is not in the index.
    """
    index = await client.get_model_repository_index(headers=headers)
    return state_in_index(index, model_name, model_version)


async def _run_steps(steps: Steps[T], client: Any) -> T:
    """Executes the calls and pauses of a wait."""
    parse_errors = protocol_of(client).parse_errors
    outcome: Any = None
    while True:
        try:
            step = steps.send(outcome)
        except StopIteration as end:
            result: T = end.value
            return result
        outcome = None
        if isinstance(step, ClientCall):
            call = getattr(client, step.method)(*step.arguments, **step.named_arguments)
            try:
                with AsyncioTimeLimit(step.limit_s):
                    outcome = await call
            except call_errors(*parse_errors) as error:
                outcome = error
        else:
            await asyncio.sleep(step)
