# SPDX-License-Identifier: Apache-2.0
"""The entry to the landing page, which is asked for paths that the HTTP port does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.lazy_module import LazyModule
from pytriton.serving.server.http.routes import first_segment, request_path

if TYPE_CHECKING:
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.http.api import HttpApi
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.request import RequestHead, Resolved
    from pytriton.serving.server.landing import api
    from pytriton.serving.server.landing.api import LandingApi
    from pytriton.serving.server.options.server_options import ServerOptions
else:
    api = LazyModule("pytriton.serving.server.landing.api")

_SEGMENT = b"landing"  # of the files and the data of the page
_FOR_EVERYBODY = (b"/", b"/docs")
_ALWAYS = (b"/openapi.json",)
_READING = (b"GET", b"HEAD")


def _is_for_browser(head: RequestHead) -> bool:
    """Returns whether a person is waiting for an answer: no client of Triton accepts HTML."""
    return head.method in _READING and b"text/html" in head.headers.get(b"accept", b"").lower()


class LandingRoutes:
    """Answers browsers, and other clients where they may know the page; else it is a 404.

    The code is imported with the first request: most servers never need it.
    """

    def __init__(self, http: HttpApi, engine: EngineClient, options: ServerOptions) -> None:
        self._http = http
        self._engine = engine
        self._options = options
        self._api: LandingApi | None = None

    def resolve(self, connection: HttpConnection, head: RequestHead) -> Resolved | None:
        """Find what answers a request; otherwise respond with the 404 that Triton sends."""
        if not self._is_answered(head):
            connection.respond_error(404, "Not Found")
            return None
        if self._api is None:
            self._api = api.LandingApi(self._http, self._engine, self._options)
        return self._api.resolve(connection, head, is_for_browser=_is_for_browser(head))

    def _is_answered(self, head: RequestHead) -> bool:
        path = request_path(head.target) or b""
        if path in _ALWAYS or first_segment(head.target) == _SEGMENT or _is_for_browser(head):
            return True
        return self._options.landing_page == "all" and path in _FOR_EVERYBODY
