# SPDX-License-Identifier: Apache-2.0
"""What programs see without a server: names, signatures, exceptions, addresses and tokens."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytriton.client
import pytriton.client.asyncio_utils
import pytriton.client.auth
import pytriton.client.exceptions
import pytriton.client.utils
import pytriton.client.warnings
from pytriton.client import DecoupledModelClient, FuturesModelClient, ModelClient
from pytriton.client.auth import create_auth_headers, extract_access_token_from_headers
from pytriton.client.utils import TritonUrl, parse_grpc_response, parse_http_response
from tests.client_differential.case import Case, Servers

CLIENTS = (
    *("ModelClient", "FuturesModelClient", "AsyncioModelClient", "DecoupledModelClient"),
    "AsyncioDecoupledModelClient",
)
HELPERS = {
    pytriton.client.utils: (
        *("create_client_from_url", "get_model_config", "get_model_state", "parse_grpc_response"),
        *("parse_http_response", "wait_for_model_ready", "wait_for_server_ready"),
    ),
    pytriton.client.asyncio_utils: (
        *("asyncio_get_model_config", "asyncio_get_model_state", "asyncio_wait_for_model_ready"),
        *("asyncio_wait_for_model_status_loaded", "asyncio_wait_for_server_ready"),
    ),
    pytriton.client.auth: ("create_auth_headers", "extract_access_token_from_headers"),
}
EXCEPTIONS = (
    *("PyTritonClientError", "PyTritonClientValueError", "PyTritonClientInvalidUrlError"),
    *("PyTritonClientTimeoutError", "PyTritonClientModelUnavailableError"),
    *("PyTritonClientClosedError", "PyTritonClientModelDoesntSupportBatchingError"),
    *("PyTritonClientInferenceServerError", "PyTritonClientQueueFullError"),
)
ADDRESSES = (
    *("localhost", "localhost:9", "127.0.0.1", "127.0.0.1:8000", "http://host", "grpc://host"),
    *("HTTP://host:1", "GRPC://host", "http://HOST", "host:8000/path", "http://host/path?a=b"),
    *("http://user:password@host:1", "grpc://host:0", "http://host:65535", "a.b-c.d:80"),
    *("https://host", "ftp://host", "invalid_scheme://host", "host:port", "http://host:port"),
    *(
        "http://host:99999",
        "http://host:-1",
        "",
        "http://",
        ":8000",
        "grpc://:8001",
        "a b",
        "//host",
    ),
    *("[::1]:8000", "http://[::1]", "http://[::1", "::1", "host:", "grpc://host:/", "grpc:host"),
    *(None, 8000, b"localhost", ["localhost"]),
)
INDEX = [
    {"name": "a", "version": "1", "state": "READY", "reason": ""},
    {"name": "a", "version": "2", "state": "UNAVAILABLE", "reason": "unloaded"},
    {"name": "b", "version": "1"},
    {"name": "c"},
]


def parameters_of(function: Any) -> list[str]:
    """Names, kinds and defaults; types are written in other ways."""
    found = inspect.signature(function).parameters.values()
    return [str(one.replace(annotation=inspect.Parameter.empty)) for one in found]


def methods_of(name: str) -> dict[str, Any]:
    client_class = getattr(pytriton.client, name)
    methods = {
        name: parameters_of(member)
        for name, member in inspect.getmembers(client_class, callable)
        if not name.startswith("_")
    }
    return {"__init__": parameters_of(client_class), **methods}


def parsed(address: Any) -> list[Any]:
    url = TritonUrl.from_url(address)
    return [url.scheme, url.hostname, url.port, url.with_scheme, url.without_scheme]


def exception(name: str) -> list[Any]:
    kind = getattr(pytriton.client.exceptions, name)
    error = kind("some words")
    names = [base.__name__ for base in kind.__mro__ if base.__module__.startswith("pytriton")]
    return [names, str(error), error.message]


def warnings_of(make: Callable[[], Any]) -> list[str]:
    """The kinds of warnings that the making of a client gives, in this thread."""
    caught: set[str] = set()
    this_thread = threading.get_ident()

    def note(_message: object, category: type[Warning], *_: object, **__: object) -> None:
        if threading.get_ident() == this_thread:
            caught.add(category.__name__)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        make().close()
    return sorted(caught)


class Entry:
    """An entry of a gRPC index."""

    def __init__(self, name: str, version: str = "", state: str = "", reason: str = "") -> None:
        self.name, self.version, self.state, self.reason = name, version, state, reason


def states(of: Any) -> dict[str, str]:
    return {" ".join(key): state.name for key, state in sorted(of.items())}


TOKENS = {
    "http": ("token", "http"),
    "grpc": ("token", "grpc"),
    "capitals": ("token", "GRPC"),
    "no token": (None, "http"),
    "empty token": ("", "http"),
    "unknown protocol": ("token", "ftp"),
}
HEADERS: dict[str, Any] = {
    "none": None,
    "empty": {},
    "http": {"triton-access-token": "token"},
    "grpc": {"triton-grpc-protocol-triton-access-token": "token"},
    "both": {"triton-access-token": "t", "triton-grpc-protocol-triton-access-token": "t"},
    "conflicting": {"triton-access-token": "t", "triton-grpc-protocol-triton-access-token": "u"},
    "capitals": {"Triton-Access-Token": "token"},
    "others": {"x-other": "token"},
}


def fact(name: str, tell: Callable[[], Any]) -> Case:
    def ask(_: Servers) -> Any:
        return tell()

    return Case(name, ask)


CASES = (
    *(fact(f"methods of {name}", lambda n=name: methods_of(n)) for name in CLIENTS),
    *(
        fact(f"signature of {name}", lambda m=module, n=name: parameters_of(getattr(m, n)))
        for module, names in HELPERS.items()
        for name in names
    ),
    *(fact(f"exception {name}", lambda n=name: exception(n)) for name in EXCEPTIONS),
    *(fact(f"address {address!r}", lambda a=address: parsed(a)) for address in ADDRESSES),
    fact("equal addresses", lambda: TritonUrl.from_url("h") == TritonUrl.from_url("http://h:8000")),
    fact("client of a wrong address", lambda: ModelClient("ftp://host", "AddSub")),
    fact("client of no text", lambda: ModelClient(None, "AddSub")),
    fact("stream client of a wrong address", lambda: DecoupledModelClient("host:port", "AddSub")),
    *(fact(f"token, {n}", lambda a=a: create_auth_headers(*a)) for n, a in TOKENS.items()),
    *(
        fact(f"token in headers, {name}", lambda h=headers: extract_access_token_from_headers(h))
        for name, headers in HEADERS.items()
    ),
    fact("warnings over http", lambda: warnings_of(lambda: ModelClient("http://localhost:1", "a"))),
    fact("warnings over grpc", lambda: warnings_of(lambda: ModelClient("grpc://localhost:1", "a"))),
    fact(
        "warnings of futures", lambda: warnings_of(lambda: FuturesModelClient("localhost:1", "a"))
    ),
    fact("latest version", lambda: pytriton.client.utils.LATEST_MODEL_VERSION),
    fact("model states", lambda: [state.value for state in pytriton.client.utils.ModelState]),
    fact(
        "kinds of warnings",
        lambda: [
            kind.__name__
            for kind in pytriton.client.warnings.NotSupportedTimeoutWarning.__mro__
            if issubclass(kind, UserWarning)
        ],
    ),
    fact("index over HTTP", lambda: states(parse_http_response(INDEX))),
    fact("index over gRPC", lambda: states(parse_grpc_response([Entry(**one) for one in INDEX]))),
    fact(
        "index with an unknown state", lambda: parse_http_response([{**INDEX[0], "state": "BAD"}])
    ),
)
