# SPDX-License-Identifier: Apache-2.0
"""What a gRPC connection needs of its owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytriton.protocol.grpc import CallHead
    from pytriton.protocol.http2 import Limits
    from pytriton.serving.server.grpc.call import Call, CallWork
    from pytriton.serving.server.grpc.connection import GrpcConnection
    from pytriton.serving.server.options.server_options import KeepaliveOptions
    from pytriton.serving.server.options.server_options import Limits as ServerLimits
    from pytriton.serving.server.process.connection_set import ConnectionSet


class CallHandler(Protocol):
    """The owner of connections, which opens their calls."""

    connections: ConnectionSet[GrpcConnection]
    http2_limits: Limits
    keepalive: KeepaliveOptions
    limits: ServerLimits
    max_message_bytes: int
    read_buffer: memoryview
    work: CallWork

    def open_call(self, connection: GrpcConnection, stream_id: int, head: CallHead) -> Call | None:
        """Returns the call that a head requests; None if it was answered already."""

    def flush_soon(self, connection: GrpcConnection) -> None:
        """Call `connection.flush` in the next iteration of the event loop."""
