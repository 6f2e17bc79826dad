# SPDX-License-Identifier: Apache-2.0
"""The interface by which the `tritonserver` command starts, shows and stops a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import asyncio

    from pytriton.serving.engine.client import IndexEntry
    from pytriton.serving.server.options.server_options import ServerOptions


class LoadProgress(NamedTuple):
    """The progress of loading models."""

    finished: int  # loaded or failed
    total: int
    loading: Sequence[str]  # names of those that are being loaded


class OpenPorts(NamedTuple):
    """The ports for clients; 0: the protocol is not served."""

    http: int
    grpc: int
    metrics: int
    sagemaker: int = 0
    vertex_ai: int = 0


class Backend(NamedTuple):
    """A backend, which runs models."""

    name: str
    path: str


class Remaining(NamedTuple):
    """What a server that is stopping still waits for."""

    http_connections: int = 0
    grpc_connections: int = 0
    busy_models: int = 0  # versions with requests in flight
    live_models: int = 0  # versions whose instances have not stopped


class ServerLifecycle(Protocol):
    """A server, from loading its models to its shutdown. It is used on the event loop's thread."""

    async def load(self, report: Callable[[LoadProgress], None]) -> None:
        """Load the models that the control mode selects; raises ServerError if one fails.

        The server can be used after an error, too. After a cancelled load, call `stop`.
        """

    async def open_ports(self) -> OpenPorts:
        """Listen for clients; raises UnavailableError with the service that could not start."""

    def index(self) -> Sequence[IndexEntry]:
        """Returns every model version that should serve, with its state."""

    def backends(self) -> Sequence[Backend]:
        """Returns the loaded backends."""

    def begin_exit(self) -> None:
        """Report from now on that the server is not ready, but continue to serve."""

    def let_clients_leave(self) -> None:
        """Serve on, but ask all clients to use other connections."""

    def remaining(self) -> Remaining:
        """Returns the connections and models that have not ended yet."""

    async def stop(self, timeout_s: float) -> bool:
        """Refuse new requests, finish those in flight, stop everything; True if all was in time."""


Build = Callable[["ServerOptions", "asyncio.AbstractEventLoop"], Awaitable[ServerLifecycle]]
