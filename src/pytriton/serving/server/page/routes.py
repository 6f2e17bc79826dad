# SPDX-License-Identifier: Apache-2.0
"""The paths of the page: its files, its data, and endpoints of the HTTP port that it may use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.transport.control import Started
from pytriton.serving.server.http.routes import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.reader import HttpRequest
    from pytriton.serving.server.page import api
    from pytriton.serving.server.page.api import PageApi

    MakePage = Callable[[type[PageApi], Started, float], PageApi]
else:
    api = LazyModule("pytriton.serving.server.page.api")

PREFIX = b"/page/"
_FORWARDED = b"/page/api/v2/"
_GET = frozenset({b"GET", b"HEAD"})
# The endpoints of the HTTP port that the page uses; a token is needed for those that do something.
_READ = frozenset({"model_metadata", "model_config", "model_statistics"})
_ACT = frozenset({"infer", "generate", "generate_stream", "repository_load", "repository_unload"})


class PageRoute(NamedTuple):
    """What a path of the page leads to."""

    kind: str  # file, data or forwarded
    name: str  # of a file, or of what answers
    api: str = ""  # the group for authorisation; a forwarded request has that of its endpoint
    needs_token: bool = False
    methods: frozenset[bytes] = _GET
    target: bytes = b""  # at the HTTP port

    @property
    def allow(self) -> bytes:
        """The Allow header line with the methods."""
        return b"Allow: %b\r\n" % b", ".join(sorted(self.methods))


_FIXED = {
    b"/": PageRoute("file", "index.html"),
    b"/openapi.json": PageRoute("data", "openapi", "metadata"),
    b"/page/api/server": PageRoute("data", "server"),
    b"/page/api/models": PageRoute("data", "models"),  # decides on each part of its answer
    b"/page/api/samples": PageRoute("data", "samples"),  # what /metrics tells, too
    b"/page/api/cluster": PageRoute("data", "cluster"),  # the same
    b"/page/api/log": PageRoute("data", "log", "logging", needs_token=True),
    b"/page/api/settings": PageRoute("data", "settings", needs_token=True),
}


def owns(path: bytes) -> bool:
    """Returns whether the page answers requests for a path."""
    return path.startswith(PREFIX) or path in _FIXED


def find(path: bytes) -> PageRoute | None:
    """Returns the route of a path that the page owns; None if it leads nowhere."""
    if path in _FIXED:
        return _FIXED[path]
    if path.startswith(_FORWARDED):
        return _forwarded(path[len(b"/page/api") :])
    name = path[len(PREFIX) :]
    return PageRoute("file", unquote_to_bytes(name).decode("utf-8", "replace"))


def _forwarded(target: bytes) -> PageRoute | None:
    found = resolve(target)
    if found is None:
        return None
    endpoint = found.endpoint
    if endpoint.handler not in _READ | _ACT:
        return None
    needs_token = endpoint.handler in _ACT
    return PageRoute(
        "forwarded", endpoint.handler, endpoint.api, needs_token, endpoint.methods, target
    )


class LazyPage:
    """Makes the page for the first request to it.

    Its code is imported then: it takes 13 ms, and nobody looks at the page of most servers.

    Args:
        make: Makes the page, of its class, the open ports, and when the server started.
    """

    def __init__(self, make: MakePage) -> None:
        self.ports = Started(0, 0, 0)  # set when they are open
        self._make = make
        self._started_s = time.time()
        self._page: PageApi | None = None

    def owns(self, path: bytes) -> bool:
        """Returns whether the page answers requests for a path."""
        return owns(path)

    def handle(self, connection: HttpConnection, request: HttpRequest) -> HttpExchange | None:
        """Answer a request now, or return the exchange that will answer it."""
        if self._page is None:
            self._page = self._make(api.PageApi, self.ports, self._started_s)
        return self._page.handle(connection, request)

    def close(self) -> None:
        """Cancel what is running when the server stops."""
        if self._page is not None:
            self._page.close()
