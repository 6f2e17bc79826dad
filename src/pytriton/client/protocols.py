# SPDX-License-Identifier: Apache-2.0
"""The differences between HTTP and gRPC in the official `tritonclient` package: calls and errors.

The module for a protocol is imported when the protocol is first used: `tritonclient.http` imports
gevent, `tritonclient.http.aio` imports aiohttp, and `tritonclient.grpc` imports grpc.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from pytriton.client.asyncio_connections import AsyncioHttpConnections, AsyncioTimeLimit
from pytriton.client.connections import HttpConnections
from pytriton.client.exceptions import (
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.kserve.address import Tls, trusted_certificates
from pytriton.client.url import TritonUrl

# The largest message that Triton accepts and sends.
_MAX_MESSAGE_BYTES = 2**31 - 1
_NO_LIMIT = contextlib.nullcontext()
_TRUSTING_SYSTEM = Tls()

# If the server notices first that the deadline has passed, it cancels the call.
_DEADLINE_PASSED = ("StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED")

_NAME = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[ -~]*")  # the printable characters of ASCII


class Http:
    """HTTP with `tritonclient.http`, over our own connections."""

    scheme = "http"
    parse_errors: tuple[type[Exception], ...] = (
        ValueError,
    )  # raised if a response is not one of Triton

    @functools.cached_property
    def library(self) -> Any:
        """The module with the classes of inputs, outputs and errors."""
        import tritonclient.http  # noqa: PLC0415  heavy

        return tritonclient.http

    @functools.cached_property
    def asyncio_library(self) -> Any:
        import tritonclient.http.aio  # noqa: PLC0415  heavy

        return tritonclient.http.aio

    def connect(self, url: TritonUrl, timeout_s: float, tls: Tls = _TRUSTING_SYSTEM) -> Any:
        context = tls.context() if url.uses_tls else None
        client = self.library.InferenceServerClient(
            url.without_scheme, connection_timeout=timeout_s, network_timeout=timeout_s
        )
        connections = HttpConnections(url, timeout_s, context)
        client._client_stub = connections  # noqa: SLF001  see connections.py
        return _with_address(client, url)

    def connect_asyncio(self, url: TritonUrl, timeout_s: float, tls: Tls = _TRUSTING_SYSTEM) -> Any:
        context = tls.context() if url.uses_tls else None
        client = self.asyncio_library.InferenceServerClient(
            url.without_scheme, conn_timeout=timeout_s
        )
        client._stub.detach()  # noqa: SLF001  see asyncio_connections.py
        client._stub = AsyncioHttpConnections(url, context)  # noqa: SLF001
        return _with_address(client, url)

    def limit(self, timeout_s: float) -> dict[str, float]:
        """Returns the timeout arguments of a call: none, because `limited` sets the timeout."""
        return {}

    def limited(self, client: Any, timeout_s: float) -> AbstractContextManager[None, None]:
        """Returns a timeout for calls inside the block; it needs our own connections."""
        connections = getattr(client, "_client_stub", None)
        if isinstance(connections, HttpConnections):
            return connections.limited_to(timeout_s)
        return _NO_LIMIT

    def asyncio_limit(self, timeout_s: float) -> AbstractContextManager[None, None]:
        """Returns a timeout for an asyncio call that is awaited inside the block."""
        return AsyncioTimeLimit(timeout_s)

    def asyncio_errors(self) -> tuple[type[Exception], ...]:
        """Returns the errors that asyncio calls raise without a complete response."""
        import aiohttp  # noqa: PLC0415  heavy

        return (OSError, aiohttp.ClientError)

    def config_arguments(self) -> dict[str, bool]:
        """Returns the arguments for getting the model's configuration as a dictionary."""
        return {}

    def config_from(self, answer: Any) -> Mapping[str, Any]:
        config: Mapping[str, Any] = answer
        return config

    def models_in(self, index: Any) -> Any:
        """Returns the models in the index of the repository."""
        return index

    def states_in(self, models: Any) -> Iterable[tuple[str, str, str]]:
        """Yields name, version and state of each model."""
        for model in models:
            yield model["name"], model.get("version", ""), model.get("state", "")


class Grpc:
    """gRPC with `tritonclient.grpc`; each of its calls has a deadline argument."""

    scheme = "grpc"
    parse_errors: tuple[type[Exception], ...] = ()  # a ValueError means a closed channel

    # By default, a channel that lost its server waits up to two minutes before it reconnects.
    _CHANNEL_ARGUMENTS = (
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    )

    @functools.cached_property
    def library(self) -> Any:
        """The module with the classes of inputs, outputs and errors."""
        import tritonclient.grpc  # noqa: PLC0415  heavy

        return tritonclient.grpc

    @functools.cached_property
    def asyncio_library(self) -> Any:
        import tritonclient.grpc.aio  # noqa: PLC0415  heavy

        return tritonclient.grpc.aio

    def connect(self, url: TritonUrl, timeout_s: float, tls: Tls = _TRUSTING_SYSTEM) -> Any:
        client = self.library.InferenceServerClient(
            url.without_scheme,
            channel_args=list(self._CHANNEL_ARGUMENTS),
            **_grpc_tls(url, tls),
        )
        return _with_address(client, url)

    def connect_asyncio(self, url: TritonUrl, timeout_s: float, tls: Tls = _TRUSTING_SYSTEM) -> Any:
        client = self.asyncio_library.InferenceServerClient(
            url.without_scheme,
            channel_args=list(self._CHANNEL_ARGUMENTS),
            **_grpc_tls(url, tls),
        )
        return _with_address(client, url)

    def limit(self, timeout_s: float) -> dict[str, float]:
        return {"client_timeout": timeout_s}

    def limited(self, client: Any, timeout_s: float) -> AbstractContextManager[None, None]:
        return _NO_LIMIT

    def asyncio_limit(self, timeout_s: float) -> AbstractContextManager[None, None]:
        return _NO_LIMIT  # the call has a deadline

    def asyncio_errors(self) -> tuple[type[Exception], ...]:
        return (OSError,)

    def config_arguments(self) -> dict[str, bool]:
        return {"as_json": True}

    def config_from(self, answer: Any) -> Mapping[str, Any]:
        config: Mapping[str, Any] = answer["config"]
        return config

    def models_in(self, index: Any) -> Any:
        return index.models

    def states_in(self, models: Any) -> Iterable[tuple[str, str, str]]:
        for model in models:
            yield model.name, model.version, model.state


HTTP = Http()
GRPC = Grpc()
Protocol = Http | Grpc
BY_SCHEME: dict[str, Protocol] = {"http": HTTP, "grpc": GRPC}


def _grpc_tls(url: TritonUrl, tls: Tls) -> dict[str, Any]:
    """Returns the arguments of the official client for an encrypted channel."""
    if not url.uses_tls:
        return {}
    return {
        "ssl": True,
        "root_certificates": tls.ca_file or trusted_certificates(),
        "private_key": tls.key_file,
        "certificate_chain": tls.certificate_file,
    }


def _with_address(client: Any, url: TritonUrl) -> Any:
    client._pytriton_address = url.with_scheme  # noqa: SLF001  only `address_of` reads it
    return client


def address_of(client: Any) -> str:
    """Returns the address of an official client's server for use in messages."""
    return str(getattr(client, "_pytriton_address", "the server"))


def protocol_of(client: Any) -> Protocol:
    """Returns the protocol of a client of the official package."""
    modules = (base.__module__ for base in type(client).__mro__)
    return GRPC if any(module.startswith("tritonclient.grpc") for module in modules) else HTTP


def is_timeout(error: Any) -> bool:
    """Whether an error of the official client or of its connection means a timeout."""
    status = getattr(error, "status", None)  # a method of the official exception
    return isinstance(error, (TimeoutError, asyncio.TimeoutError)) or (
        callable(status) and status() in _DEADLINE_PASSED
    )


def text_of(error: Any) -> str:
    """Returns the text of such an error; asyncio.TimeoutError has none of its own."""
    if callable(getattr(error, "status", None)):
        return str(error.message())
    text = str(error) or ("no answer came in time" if is_timeout(error) else "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def failure_of(error: Any, during: str, limit: str) -> PyTritonClientError:
    """Returns the exception to raise for an error of the official client.

    Args:
        error: an `InferenceServerException`, an error of the connection, or a `ValueError` from
            parsing the response.
        during: purpose of the call, such as "inference request".
        limit: timeout of the call, such as "5 s".
    """
    status = getattr(error, "status", None)  # a method of the official exception
    text = text_of(error)
    if is_timeout(error):
        return PyTritonClientTimeoutError(
            f"Timeout occurred during {during}. Timeout: {limit}. Message: {text}"
        )
    if isinstance(error, ValueError):
        text = (
            "expected an answer of a Triton server, got one that cannot be read: "
            f"{str(error).rstrip('.')}. Is this the port for HTTP, which is 8000 by default?"
        )
    elif not callable(status):
        return PyTritonClientTimeoutError(f"No answer came to {during}. Message: {text}")
    return PyTritonClientInferenceServerError(f"Error occurred during {during}. Message: {text}")


def as_metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns headers with lower-case names, as gRPC requires them.

    Raises:
        PyTritonClientValueError: A name or a value cannot be sent.
    """
    metadata = {name.lower(): value for name, value in headers.items()}
    for name, value in metadata.items():
        if not _NAME.fullmatch(name):
            raise PyTritonClientValueError(
                f"Headers: expected names of letters, digits and any of -_. for gRPC, got {name!r}"
            )
        if not _VALUE.fullmatch(value):
            raise PyTritonClientValueError(  # without the value, which may be a secret
                f"Headers: expected a value of printable ASCII characters for gRPC in {name!r}"
            )
    return metadata
