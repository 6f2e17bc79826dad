# SPDX-License-Identifier: Apache-2.0
"""Functions for clients of `tritonclient`: make one, wait for a server or model, get its state.

`pytriton.client.asyncio_utils` has the same functions for asyncio.
"""

from __future__ import annotations

import enum
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pytriton.client import official, waiting
from pytriton.client.connections import HttpConnections
from pytriton.client.protocols import address_of, call_errors, protocol_of, states_in
from pytriton.client.url import TritonUrl
from pytriton.client.waiting import (
    DEFAULT_WAIT_FOR_MODEL_TIMEOUT_S,
    DEFAULT_WAIT_FOR_SERVER_TIMEOUT_S,
    ClientCall,
    ModelVersion,
    ReadinessWait,
    Steps,
)
from pytriton.client.warnings import NotSupportedTimeoutWarning
from pytriton.model_config.triton_model_config import TritonModelConfig

__all__ = [
    "LATEST_MODEL_VERSION",
    "ModelState",
    "TritonUrl",
    "create_client_from_url",
    "get_model_config",
    "get_model_state",
    "parse_grpc_response",
    "parse_http_response",
    "wait_for_model_ready",
    "wait_for_server_ready",
]

LATEST_MODEL_VERSION = "<latest>"

_DEFAULT_NETWORK_TIMEOUT_S = 60.0

ModelStates = dict[tuple[str, str], "ModelState"]
T = TypeVar("T")


class ModelState(enum.Enum):
    """The state of a model in the index of a server's repository."""

    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"
    READY = "READY"


def create_client_from_url(url: str, network_timeout_s: float | None = None) -> Any:
    """Create a client of the official package for the protocol of the address.

    Args:
        url: address in the form of `TritonUrl.from_url`.
        network_timeout_s: timeout of each call over HTTP; default is 60 s. Calls over gRPC have
            their own timeout argument.

    Returns:
        `tritonclient.http.InferenceServerClient` or `tritonclient.grpc.InferenceServerClient`; any
        thread may use either.

    Raises:
        PyTritonClientInvalidUrlError: The address is malformed.
        ModuleNotFoundError: The package is not installed; the extra `tritonclient` brings it.
    """
    address = TritonUrl.from_url(url)
    timeout_s = _DEFAULT_NETWORK_TIMEOUT_S if network_timeout_s is None else network_timeout_s
    return official.connect(address, timeout_s)


def wait_for_server_ready(
    client: Any, timeout_s: float | None = None, headers: Mapping[str, str] | None = None
) -> None:
    """Wait until the server is ready and live.

    Args:
        client: a client of the official package.
        timeout_s: the timeout; default is 60 s.
        headers: headers of the requests.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time.
    """
    timeout_s = DEFAULT_WAIT_FOR_SERVER_TIMEOUT_S if timeout_s is None else timeout_s
    _warn_if_limit_cannot_be_kept(client, timeout_s)
    _run_steps(
        waiting.server_ready(ReadinessWait(timeout_s, address=address_of(client)), headers), client
    )


def wait_for_model_ready(
    client: Any,
    model_name: str,
    model_version: str | None = None,
    timeout_s: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Wait until the server and one of its models are ready.

    Args:
        client: a client of the official package.
        model_name: name of the model.
        model_version: version of the model; default is the latest.
        timeout_s: time allowed for both; default is 300 s.
        headers: headers of the requests.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time.
        PyTritonClientModelUnavailableError: The model was not ready in time.
    """
    timeout_s = DEFAULT_WAIT_FOR_MODEL_TIMEOUT_S if timeout_s is None else timeout_s
    _warn_if_limit_cannot_be_kept(client, timeout_s)
    model = ModelVersion(model_name, model_version)
    wait = ReadinessWait(timeout_s, address=address_of(client))
    _run_steps(waiting.model_ready(wait, headers, model), client)


def get_model_config(
    client: Any,
    model_name: str,
    model_version: str | None = None,
    timeout_s: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> TritonModelConfig:
    """Wait until a model is ready and return its configuration.

    Args:
        client: a client of the official package.
        model_name: name of the model.
        model_version: version of the model; default is the latest.
        timeout_s: timeout of the whole operation; default is 300 s.
        headers: headers of the requests.

    Returns:
        The configuration.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time, or did not answer.
        PyTritonClientModelUnavailableError: The model was not ready in time.
        PyTritonClientInferenceServerError: The server refused the request for the configuration.
    """
    timeout_s = DEFAULT_WAIT_FOR_MODEL_TIMEOUT_S if timeout_s is None else timeout_s
    wait = ReadinessWait(timeout_s, address=address_of(client))
    return wait_for_model_config(client, ModelVersion(model_name, model_version), wait, headers)


def wait_for_model_config(
    client: Any, model: ModelVersion, wait: ReadinessWait, headers: Mapping[str, str] | None
) -> TritonModelConfig:
    """Like `get_model_config`, with a wait that the caller has made."""
    return _run_steps(waiting.model_config(wait, headers, model, protocol_of(client)), client)


def get_model_state(
    client: Any,
    model_name: str,
    model_version: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> ModelState:
    """Return the state of a model from the index of the server's repository.

    Args:
        client: a client of the official package.
        model_name: name of the model.
        model_version: version of the model; default is the greatest version number.
        headers: headers of the request; the index usually needs an access token.

    Returns:
        The state; UNAVAILABLE if the model is not in the index.
    """
    index = client.get_model_repository_index(headers=headers)
    return state_in_index(index, model_name, model_version)


def parse_http_response(models: Any) -> ModelStates:
    """Parse an index received over HTTP.

    Args:
        models: list of models, each a dictionary.

    Returns:
        State by name and version of the models that have a version.
    """
    return _states(models)


def parse_grpc_response(models: Any) -> ModelStates:
    """Parse an index received over gRPC.

    Args:
        models: the message's list of models.

    Returns:
        State by name and version of the models that have a version.
    """
    return _states(models)


def state_in_index(index: Any, model_name: str, model_version: str | None = None) -> ModelState:
    """Returns the state of a version of a model; default is the greatest version."""
    states = _states(index)
    versions = {version: state for (name, version), state in states.items() if name == model_name}
    if model_version is None and versions:
        model_version = max(versions, key=int)
    return versions.get(model_version or "", ModelState.UNAVAILABLE)


def call_within(
    timeout_s: float, client: Any, name: str, *arguments: Any, **named_arguments: Any
) -> Any:
    """Calls a method of a client with a timeout."""
    protocol = protocol_of(client)
    method: Callable[..., Any] = getattr(client, name)
    with protocol.limited(client, timeout_s):
        return method(*arguments, **named_arguments, **protocol.limit(timeout_s))


def _run_steps(steps: Steps[T], client: Any) -> T:
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
            try:
                outcome = call_within(
                    step.limit_s, client, step.method, *step.arguments, **step.named_arguments
                )
            except call_errors(*parse_errors) as error:
                outcome = error
        else:
            time.sleep(step)


def _warn_if_limit_cannot_be_kept(client: Any, timeout_s: float) -> None:
    """Warns if connections that are not ours have a longer timeout for all calls."""
    pool = getattr(getattr(client, "_client_stub", None), "_connection_pool", None)
    network_timeout_s = getattr(pool, "network_timeout", None)
    if isinstance(pool, HttpConnections) or network_timeout_s is None:
        return
    if network_timeout_s > timeout_s:
        warnings.warn(
            f"The client's network timeout of {network_timeout_s} s is longer than the time "
            f"allowed, {timeout_s} s: the wait may take that long.",
            NotSupportedTimeoutWarning,
            stacklevel=3,
        )


def _states(models: Any) -> ModelStates:
    return {
        (name, version): ModelState(state) if state else ModelState.LOADING
        for name, version, state in states_in(models)
        if version
    }
