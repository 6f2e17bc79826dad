# SPDX-License-Identifier: Apache-2.0
"""The metrics port: `/metrics` in Prometheus' text format, nothing on any other path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.engine.model_state import ModelState
from pytriton.server.http.handler import HttpHandler
from pytriton.server.metrics.page import MetricsPage

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from pytriton.engine.engine import Engine
    from pytriton.engine.served_model import ServedModel
    from pytriton.server.http.connection import HttpConnection
    from pytriton.server.http.reader import HttpRequest
    from pytriton.server.metrics.exposition import Family
    from pytriton.server.options.server_options import ServerOptions

_CONTENT_TYPE = b"text/plain; charset=utf-8"
_ALLOW = b"Allow: GET, HEAD\r\n"


class MetricsApi(HttpHandler):
    """Answers scrapes; `custom` returns the custom metrics of models."""

    def __init__(
        self,
        engine: Engine,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        custom: Callable[[], Iterable[Family]] = tuple,
    ) -> None:
        super().__init__(options.limits, loop)
        self._engine = engine
        self._custom = custom
        self._page = MetricsPage(options.metrics_options)

    def handle(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Answer a scrape."""
        if request.head.method not in (b"GET", b"HEAD"):
            connection.respond_error(405, "Method Not Allowed", _ALLOW)
            return
        path = request.head.target.partition(b"?")[0]
        if path in (b"/metrics", b"/metrics/"):
            # A version that failed to load, or is unloaded, has no statistics to show.
            models = [model for model in self._engine.models() if _has_served(model)]
            page = self._page.render(models, self._custom())
            connection.respond(200, (page,), _CONTENT_TYPE)
        else:
            connection.respond(200, (), _CONTENT_TYPE)


def _has_served(model: ServedModel) -> bool:
    is_loaded = model.state in (ModelState.READY, ModelState.UNLOADING)
    return is_loaded or bool(model.instances or model.missing_instances)
