# SPDX-License-Identifier: Apache-2.0
"""The page until somebody opens it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.transport.control import Started
from pytriton.serving.server.page.routes import owns

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
