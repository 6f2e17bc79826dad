# SPDX-License-Identifier: Apache-2.0
"""The HTTP endpoints that register, list and unregister shared memory of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from pytriton.base.errors import InvalidArgumentError
from pytriton.protocol.shared_memory import check_cuda_region, read_system_region

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.serving.engine.client import Answer
    from pytriton.serving.server.http.bodies import Bodies
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.reader import HttpRequest
    from pytriton.serving.server.http.repository import RespondWhenKnown
    from pytriton.serving.server.http.routes import Route
    from pytriton.serving.server.shared_memory.regions import Region
    from pytriton.serving.server.shared_memory.shared_memory import SharedMemory


class SharedMemoryEndpoints:
    """Parses requests, and answers when all front ends know the change."""

    def __init__(
        self, shared_memory: SharedMemory, bodies: Bodies, respond_when_known: RespondWhenKnown
    ) -> None:
        self._shared_memory = shared_memory
        self._bodies = bodies
        self._respond_when_known = respond_when_known

    def handlers(self) -> dict[str, Callable[..., HttpExchange | None]]:
        """Returns the methods that answer, by the names in the table of routes."""
        return {
            "system_memory_status": self.status,
            "system_memory_register": self.register,
            "system_memory_unregister": self.unregister,
            "cuda_memory_status": self.cuda_status,
            "cuda_memory_register": self.cuda_register,
            "cuda_memory_unregister": self.cuda_unregister,
        }

    def status(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        """List one region or all."""
        regions = self._shared_memory.status(route.region)
        connection.respond(200, (orjson.dumps([_document(region) for region in regions]),))

    def register(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        self._shared_memory.check_allowed()
        if not route.region:
            raise InvalidArgumentError(
                "'region name' is necessary to register system shared memory region"
            )
        region = read_system_region(self._bodies.settings(request))
        registered = self._shared_memory.register(route.region, *region)
        return self._respond_after(connection, registered)

    def unregister(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> HttpExchange | None:
        """Unregister a region, or all without a name."""
        self._shared_memory.check_allowed()
        return self._respond_after(connection, self._shared_memory.unregister(route.region))

    def cuda_status(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        """List no region: there are none of CUDA memory."""
        self._shared_memory.check_cuda_status(route.region)
        connection.respond(200, (b"[]",))

    def cuda_register(self, connection: HttpConnection, request: HttpRequest, route: Route) -> None:
        """Refuse to register a region of CUDA memory."""
        self._shared_memory.check_allowed()
        if not route.region:  # only HTTP checks this, as in Triton
            raise InvalidArgumentError(
                "'region name' is necessary to register cuda shared memory region"
            )
        check_cuda_region(self._bodies.settings(request))
        self._shared_memory.register_cuda(route.region)

    def cuda_unregister(
        self, connection: HttpConnection, request: HttpRequest, route: Route
    ) -> None:
        """Do nothing: there are no regions of CUDA memory, and an unknown one is no error."""
        self._shared_memory.check_allowed()
        connection.respond(200)

    def _respond_after(self, connection: HttpConnection, work: Answer[None]) -> HttpExchange | None:
        return self._respond_when_known(connection, work, lambda _: connection.respond(200))


def _document(region: Region) -> dict[str, Any]:
    return {
        "name": region.name,
        "key": region.key,
        "offset": region.offset,
        "byte_size": region.byte_size,
    }
