# SPDX-License-Identifier: Apache-2.0
"""What `pytriton.client.utils` does, for the asyncio clients of the official package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pytriton.client.exceptions import (
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
)
from pytriton.client.failures import failure_of
from pytriton.client.protocols import protocol_of
from pytriton.client.utils import ModelState, state_in_index
from pytriton.client.waiting import Wait
from pytriton.model_config.parser import ModelConfigParser
from pytriton.model_config.triton_model_config import TritonModelConfig

_DEFAULT_TIMEOUT_S = 60.0


async def asyncio_wait_for_server_ready(
    asyncio_client: Any, sleep_time_s: float, headers: Mapping[str, str] | None = None
) -> None:
    """Wait, for as long as it takes, until the server is ready and live.

    Args:
        asyncio_client: an asyncio client of the official package.
        sleep_time_s: pause between two looks.
        headers: headers of the requests.
    """
    while True:
        try:
            if await _is_server_ready(asyncio_client, headers):
                return
        except refusals_of(asyncio_client):
            pass  # not there yet
        await asyncio.sleep(sleep_time_s)


async def asyncio_wait_for_model_status_loaded(
    asyncio_client: Any,
    model_name: str,
    sleep_time_s: float,
    model_version: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Wait, for as long as it takes, until the index of the repository has the model as READY.

    Args:
        asyncio_client: an asyncio client of the official package.
        model_name: name of the model.
        sleep_time_s: pause between two looks.
        model_version: version of the model; default is the latest.
        headers: headers of the requests.
    """
    while True:
        try:
            state = await asyncio_get_model_state(
                asyncio_client, model_name, model_version, headers
            )
        except refusals_of(asyncio_client):
            state = ModelState.UNAVAILABLE
        if state is ModelState.READY:
            return
        await asyncio.sleep(sleep_time_s)


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
    await _wait_for_model(asyncio_client, model_name, model_version, Wait(timeout_s), headers)


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
    wait = Wait(timeout_s)
    await _wait_for_model(client, model_name, model_version, wait, headers)
    protocol = protocol_of(client)
    question = client.get_model_config(
        model_name, model_version or "", headers=headers, **protocol.config_arguments()
    )
    try:
        answer = await asyncio.wait_for(question, wait.limit_s())
    except refusals_of(client) as error:
        raise failure_of(error, "request for a model's configuration", timeout_s) from error
    return ModelConfigParser.from_dict(protocol.config_from(answer))


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


async def _is_server_ready(client: Any, headers: Mapping[str, str] | None) -> bool:
    is_ready = await client.is_server_ready(headers=headers)
    return bool(is_ready and await client.is_server_live(headers=headers))


async def _wait_for_model(
    client: Any,
    model_name: str,
    model_version: str | None,
    wait: Wait,
    headers: Mapping[str, str] | None,
) -> None:
    subject = f"model {model_name}" + (f" version {model_version}" if model_version else "")
    text = f"Timeout while waiting for {subject} to be ready for {wait.timeout_s:g} s"
    if not await _becomes_true(lambda: _is_server_ready(client, headers), client, wait):
        raise PyTritonClientTimeoutError(f"{text}. The server: {wait.last_problem}.")
    is_ready = lambda: client.is_model_ready(  # noqa: E731  the question, asked again and again
        model_name, model_version or "", headers=headers
    )
    if not await _becomes_true(is_ready, client, wait):
        raise PyTritonClientModelUnavailableError(
            f"{text}. The server is ready; the model: {wait.last_problem}."
        )


async def _becomes_true(question: Callable[[], Awaitable[Any]], client: Any, wait: Wait) -> bool:
    while True:
        try:
            if await asyncio.wait_for(question(), wait.limit_s()):
                return True
            wait.last_problem = "it is not ready"
        except refusals_of(client) as error:
            wait.last_problem = f"{type(error).__name__}: {error}"
        pause_s = wait.next_pause_s()
        if pause_s is None:
            return False
        await asyncio.sleep(pause_s)
