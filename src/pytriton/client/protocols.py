# SPDX-License-Identifier: Apache-2.0
"""The differences between HTTP and gRPC for our clients: connections, timeouts and errors."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pytriton.base.lazy_module import LazyModule
from pytriton.client import official
from pytriton.client.asyncio_connections import AsyncioHttpConnections, AsyncioTimeLimit
from pytriton.client.connections import HttpConnections
from pytriton.client.exceptions import (
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.http_service import AsyncioHttpService, HttpService
from pytriton.client.kserve.address import Tls
from pytriton.client.service import ServiceError
from pytriton.client.url import TritonUrl

if TYPE_CHECKING:
    from pytriton.client import grpc_service
else:  # grpc takes as long to import as all the rest together
    grpc_service = LazyModule("pytriton.client.grpc_service")

_OVER_GRPC = ("tritonclient.grpc", "pytriton.client.grpc_service")
_NO_LIMIT = contextlib.nullcontext()

# If the server notices first that the deadline has passed, it cancels the call.
_DEADLINE_PASSED = ("StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED")

_NAME = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[ -~]*")  # the printable characters of ASCII


class Http:
    """HTTP, over our own connections."""

    scheme = "http"
    parse_errors: tuple[type[Exception], ...] = (
        ValueError,
    )  # raised if a response is not one of Triton

    def prepare(self) -> None:
        """Imports what calls need, which takes longer than some timeouts."""

    def connect(self, url: TritonUrl, timeout_s: float, tls: Tls) -> Any:
        context = tls.context() if url.uses_tls else None
        return HttpService(HttpConnections(url, timeout_s, context), url.with_scheme)

    def connect_asyncio(self, url: TritonUrl, timeout_s: float, tls: Tls) -> Any:
        context = tls.context() if url.uses_tls else None
        return AsyncioHttpService(AsyncioHttpConnections(url, context), url.with_scheme)

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

    def config_arguments(self) -> dict[str, bool]:
        """Returns the arguments for getting the model's configuration as a dictionary."""
        return {}


class Grpc:
    """gRPC; each call has an argument for its timeout."""

    scheme = "grpc"
    parse_errors: tuple[type[Exception], ...] = ()  # a ValueError means a closed channel

    def prepare(self) -> None:
        _ = grpc_service.GrpcService

    def connect(self, url: TritonUrl, timeout_s: float, tls: Tls) -> Any:
        used_tls = tls if url.uses_tls else None
        return grpc_service.GrpcService(url.without_scheme, used_tls, url.with_scheme)

    def connect_asyncio(self, url: TritonUrl, timeout_s: float, tls: Tls) -> Any:
        used_tls = tls if url.uses_tls else None
        return grpc_service.AsyncioGrpcService(url.without_scheme, used_tls, url.with_scheme)

    def limit(self, timeout_s: float) -> dict[str, float]:
        return {"client_timeout": timeout_s}

    def limited(self, client: Any, timeout_s: float) -> AbstractContextManager[None, None]:
        return _NO_LIMIT

    def asyncio_limit(self, timeout_s: float) -> AbstractContextManager[None, None]:
        return _NO_LIMIT  # the call has a deadline

    def config_arguments(self) -> dict[str, bool]:
        return {"as_json": True}


HTTP = Http()
GRPC = Grpc()
Protocol = Http | Grpc
BY_SCHEME: dict[str, Protocol] = {"http": HTTP, "grpc": GRPC}


def address_of(client: Any) -> str:
    """Returns the address of a client's server for use in messages."""
    return str(getattr(client, "_pytriton_address", "the server"))


def protocol_of(client: Any) -> Protocol:
    """Returns the protocol of a service of ours, or of an official client."""
    modules = (base.__module__ for base in type(client).__mro__)
    return GRPC if any(module.startswith(_OVER_GRPC) for module in modules) else HTTP


def states_in(index: Any) -> Iterable[tuple[str, str, str]]:
    """Yields name, version and state of each model in an index.

    Official clients over gRPC have a message of messages, all others a list of dictionaries.
    """
    for model in getattr(index, "models", index):
        if isinstance(model, Mapping):
            yield model["name"], model.get("version", ""), model.get("state", "")
        else:
            yield model.name, model.version, model.state


def call_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Returns the exceptions of calls, of our services and of official clients, and others."""
    # asyncio.TimeoutError is the built-in TimeoutError, an OSError, only from Python 3.11 on.
    return (ServiceError, OSError, asyncio.TimeoutError, *official.call_errors(), *more)


def is_timeout(error: Any) -> bool:
    """Whether an error of a call means a timeout."""
    status = getattr(error, "status", None)  # a method of `ServiceError` and the official exception
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
    """Returns the exception to raise for an error of a call.

    Args:
        error: a `ServiceError` or its official twin, an error of the connection, or a `ValueError`
            from parsing the response.
        during: purpose of the call, such as "inference request".
        limit: timeout of the call, such as "5 s".
    """
    status = getattr(error, "status", None)
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
