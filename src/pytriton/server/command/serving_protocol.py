# SPDX-License-Identifier: Apache-2.0
"""What the `tritonserver` command starts, shows and ends: a server with its repositories."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import asyncio

    from pytriton.engine.control import IndexEntry
    from pytriton.server.options.server_options import ServerOptions


class LoadProgress(NamedTuple):
    """How far the loading of models is."""

    finished: int  # loaded or failed
    total: int
    loading: Sequence[str]  # names of those that are being loaded


class OpenPorts(NamedTuple):
    """Where clients find the server; 0 is a protocol that is not served."""

    http: int
    grpc: int
    metrics: int


class Backend(NamedTuple):
    """Something that runs models."""

    name: str
    path: str


class Remaining(NamedTuple):
    """What a server that is ending still waits for."""

    http_connections: int = 0
    grpc_connections: int = 0
    busy_models: int = 0  # versions with requests in flight
    live_models: int = 0  # versions whose instances have not ended


class Serving(Protocol):
    """A server, from its first model to its last request. All on the event loop."""

    async def load(self, report: Callable[[LoadProgress], None]) -> None:
        """Load what the control mode says should serve; ServerError where something of it cannot.

        The server can be used after an error, too. A cancelled load leaves the rest to `stop`.
        """

    async def open_ports(self) -> OpenPorts:
        """Listen; UnavailableError says, in full, which service could not be started."""

    def index(self) -> Sequence[IndexEntry]:
        """Every model version that should serve, with its state; no version where there is none."""

    def backends(self) -> Sequence[Backend]:
        """What was loaded to run models."""

    def begin_exit(self) -> None:
        """Report from now on that the server is not ready, but go on serving."""

    def remaining(self) -> Remaining:
        """What is still to be waited for."""

    async def stop(self, timeout_s: float) -> bool:
        """Take no new requests, finish those in flight, end everything; True if all did in time."""


Build = Callable[["ServerOptions", "asyncio.AbstractEventLoop"], Awaitable[Serving]]
