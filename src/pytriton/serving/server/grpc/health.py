# SPDX-License-Identifier: Apache-2.0
"""The standard health service of gRPC: `grpc.health.v1.Health`, with Check and Watch.

Its two messages have one field each, so they are encoded by hand; `descriptor` describes them for
reflection. The service name in a request is ignored, as in Triton: all get the same answer.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2

from pytriton.serving.server.api.local_client import LocalClient
from pytriton.serving.server.grpc.call import GrpcCall, UnaryCall
from pytriton.serving.server.grpc.call_state import ENDED

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.grpc import CallHead
    from pytriton.serving.engine.client import Answer, EngineClient
    from pytriton.serving.server.grpc.connection import GrpcConnection

PACKAGE = "grpc.health.v1"
SERVICE = f"{PACKAGE}.Health"
FILE = "grpc/health/v1/health.proto"
_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
_SERVING = bytes((0x08, _STATUSES.index("SERVING")))
_NOT_SERVING = bytes((0x08, _STATUSES.index("NOT_SERVING")))


def encode_status(is_ready: bool) -> bytes:
    """Returns a HealthCheckResponse."""
    return _SERVING if is_ready else _NOT_SERVING


class HealthService:
    """Reports whether the server is ready, and sends changes to Watch calls."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self.watchers: dict[WatchCall, None] = {}  # calls that get changes until they end

    def is_ready(self) -> Answer[bool]:
        """Returns whether the server is ready; models with a check of their own are asked."""
        return self._engine.ask(LocalClient.is_ready)

    def status(self) -> bytes:
        """Returns a HealthCheckResponse that is based on known states; models are not asked."""
        return encode_status(self._engine.is_serving())

    def notify(self) -> None:
        """Called periodically: send the status to all Watch calls if it has changed."""
        if self.watchers:
            status = self.status()
            for call in self.watchers:
                call.send_status(status)


class CheckCall(UnaryCall):
    """Health/Check."""

    __slots__ = ("_service",)

    def __init__(
        self, service: HealthService, connection: GrpcConnection, stream_id: int, head: CallHead
    ) -> None:
        super().__init__(connection, stream_id, head)
        self._service = service

    def on_request(self, message: Buffer) -> None:
        """Send the current status."""
        is_ready = self._service.is_ready()
        if isinstance(is_ready, Coroutine):
            self.connection.work.run_task(self, self._respond_later(is_ready))
        else:
            self.respond([encode_status(is_ready)])

    async def _respond_later(self, is_ready: Coroutine[Any, Any, bool]) -> None:
        status = encode_status(await is_ready)
        if self.state is not ENDED:
            self.respond([status])


class WatchCall(GrpcCall):
    """Health/Watch: sends the current status and every change."""

    __slots__ = ("_last_status", "_service")

    def __init__(
        self, service: HealthService, connection: GrpcConnection, stream_id: int, head: CallHead
    ) -> None:
        super().__init__(connection, stream_id, head)
        self._service = service
        self._last_status = b""

    def on_message(self, message: Buffer) -> None:
        """Send the status, and changes from now on."""
        self._service.watchers[self] = None
        self.send_status(self._service.status())

    def send_status(self, status: bytes) -> None:
        """Send a status unless the client has it already."""
        if status != self._last_status:
            self._last_status = status
            self.send([status])

    def on_abandoned(self) -> None:
        self._service.watchers.pop(self, None)


def descriptor() -> descriptor_pb2.FileDescriptorProto:
    field_types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=FILE, package=PACKAGE, syntax="proto3")
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(
        name="service", number=1, type=field_types.TYPE_STRING, label=field_types.LABEL_OPTIONAL
    )
    response = file.message_type.add(name="HealthCheckResponse")
    response.field.add(
        name="status",
        number=1,
        type=field_types.TYPE_ENUM,
        type_name=f".{PACKAGE}.HealthCheckResponse.ServingStatus",
        label=field_types.LABEL_OPTIONAL,
    )
    enum = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(_STATUSES):
        enum.value.add(name=name, number=number)
    service = file.service.add(name="Health")
    types = {
        "input_type": f".{PACKAGE}.HealthCheckRequest",
        "output_type": f".{PACKAGE}.HealthCheckResponse",
    }
    service.method.add(name="Check", **types)
    service.method.add(name="Watch", server_streaming=True, **types)
    return file
