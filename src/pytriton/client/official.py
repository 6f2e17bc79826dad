# SPDX-License-Identifier: Apache-2.0
"""Clients of the package `tritonclient`: programs get them here, or put them in a service's place.

The package is imported here only, and only where its objects are asked for. It comes with the extra
`tritonclient`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pytriton.client.connections import HttpConnections
from pytriton.client.http_message import HttpAnswer
from pytriton.client.kserve.address import Tls, trusted_certificates
from pytriton.client.url import TritonUrl

_PACKAGE = "tritonclient"
# The methods that our clients call.
_METHODS = (
    *("is_server_live", "is_server_ready", "is_model_ready", "get_model_config", "infer"),
    *("get_model_repository_index", "load_model", "unload_model", "stream_infer"),
)
# What calls raise, beside OSError. Who has not imported the module cannot raise it.
_ERRORS = (("tritonclient.utils", "InferenceServerException"), ("aiohttp", "ClientError"))


def load(scheme: str, *, is_asyncio: bool = False) -> ModuleType:
    """Returns the module of the package for a protocol.

    Raises:
        ModuleNotFoundError: The package is not installed.
    """
    name = _module(scheme, is_asyncio=is_asyncio)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != _PACKAGE:
            raise  # the package is there, but something that it needs is not
        raise ModuleNotFoundError(
            f"A client of {name} needs the package {_PACKAGE}, which is not installed: "
            "pip install 'pytriton[tritonclient]'. ModelClient and the other clients of "
            "pytriton.client do not need it.",
            name=_PACKAGE,
        ) from error


def connect(url: TritonUrl, timeout_s: float) -> Any:
    """Returns a client of the package that any thread may use and that keeps its timeouts."""
    library = load(url.scheme)
    if url.scheme == "http":
        client = library.InferenceServerClient(
            url.without_scheme, connection_timeout=timeout_s, network_timeout=timeout_s
        )
        context = Tls().context() if url.uses_tls else None
        client._client_stub = _ClientStub(url, timeout_s, context)  # noqa: SLF001  instead of gevent's
    else:
        client = library.InferenceServerClient(url.without_scheme, **_grpc_tls(url))
    client._pytriton_address = url.with_scheme  # noqa: SLF001  `address_of` reads it
    return client


def connect_asyncio(url: TritonUrl) -> Any:
    """Returns a client of the package for asyncio."""
    client_class = load(url.scheme, is_asyncio=True).InferenceServerClient
    if url.scheme == "http":
        return client_class(url.without_scheme, ssl=url.uses_tls)
    return client_class(url.without_scheme, **_grpc_tls(url))


def has_fakes(scheme: str, *, is_asyncio: bool) -> bool:
    """Whether a program's tests have put fakes in place of methods of the package's class.

    Then clients go through that class, so that they use the fakes.
    """
    library = sys.modules.get(_module(scheme, is_asyncio=is_asyncio))
    client_class = getattr(library, "InferenceServerClient", None)
    return any(_is_fake(getattr(client_class, name, None)) for name in _METHODS)


def is_client(client: Any) -> bool:
    """Whether a client is one of the package, or of a class derived from one."""
    kind = type(client)
    if kind.__module__.startswith("pytriton.client."):  # the usual case, in less time
        return False
    return any(base.__module__.startswith(f"{_PACKAGE}.") for base in kind.__mro__)


def suited(request: dict[str, Any], client: Any, scheme: str) -> dict[str, Any]:
    """Returns the arguments of `infer` for a client: one of the package needs its own classes."""
    if not is_client(client):
        return request
    library = load(scheme)
    inputs = [
        library.InferInput(each.name(), each.shape(), each.datatype()).set_data_from_numpy(
            each.tensor.array
        )
        for each in request["inputs"]
    ]
    outputs = [library.InferRequestedOutput(each.name()) for each in request["outputs"]]
    return {**request, "inputs": inputs, "outputs": outputs}


def stream(client: Any, message: Any, headers: Mapping[str, str] | None) -> Any:
    """Returns a call of a client over gRPC with a message of ours.

    The client's own stream is one for all requests, and its thread outlives the program.
    """
    official_class: Any = load("grpc").service_pb2.ModelInferRequest
    theirs = official_class.FromString(message.SerializeToString())
    stub = client._client_stub  # noqa: SLF001
    return stub.ModelStreamInfer(iter((theirs,)), metadata=tuple((headers or {}).items()))


def call_errors() -> tuple[type[Exception], ...]:
    """Returns what calls of the package may raise, beside OSError."""
    return tuple(
        getattr(sys.modules[module], name) for module, name in _ERRORS if module in sys.modules
    )


class _ClientStub(HttpConnections):
    """Our connections with the methods that `tritonclient.http` calls.

    Its own ones belong to one thread and have a timeout for each read, so an answer that arrives
    slowly never times out.
    """

    def get(self, request_uri: str, headers: Mapping[str, Any] | None = None) -> _Response:
        return _Response(self.ask("GET", request_uri, headers))

    def post(
        self, request_uri: str, body: bytes | str = b"", headers: Mapping[str, Any] | None = None
    ) -> _Response:
        data = body.encode() if isinstance(body, str) else body
        return _Response(self.ask("POST", request_uri, headers, [data]))


class _Response:
    """A response with the few methods that `tritonclient.http` calls."""

    def __init__(self, answer: HttpAnswer) -> None:
        self.status_code: int = answer.status_code
        self._headers = answer.headers
        self._body = answer.body
        self._read = 0

    def get(self, name: str, default: str | None = None) -> str | None:
        """Returns the value of a header."""
        return self._headers.get(name.lower(), default)

    def read(self, length: int | None = None) -> bytes | memoryview:
        """Returns the next bytes of the body; tensors after a JSON head are a view of the body."""
        start = self._read
        if length is None:
            self._read = len(self._body)
            return memoryview(self._body)[start:] if start else bytes(self._body)
        self._read = min(start + length, len(self._body))
        return bytes(self._body[start : self._read])


def _module(scheme: str, *, is_asyncio: bool) -> str:
    return f"{_PACKAGE}.{scheme}" + (".aio" if is_asyncio else "")


def _grpc_tls(url: TritonUrl) -> dict[str, Any]:
    if not url.uses_tls:
        return {}
    return {"ssl": True, "root_certificates": trusted_certificates()}


def _is_fake(member: Any) -> bool:
    if member is None:  # only some of the classes have it
        return False
    module = getattr(member, "__module__", None) or ""
    return hasattr(member, "mock") or not module.startswith(_PACKAGE)
