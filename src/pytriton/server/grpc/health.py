# SPDX-License-Identifier: Apache-2.0
"""The standard health service of gRPC: `grpc.health.v1.Health`, with Check and Watch.

Its two messages have one field each, so they are written by hand; `descriptor` tells reflection of
them. The service that a client names is ignored, as Triton does: there is one answer for all.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2

from pytriton.server.grpc.call import Call, UnaryCall

if TYPE_CHECKING:
    from pytriton.dtypes import Buffer
    from pytriton.server.api.readiness import Readiness, ReadyResult
    from pytriton.server.grpc.call import CallConnection
    from pytriton.wire.grpc import CallHead

PACKAGE = "grpc.health.v1"
SERVICE = f"{PACKAGE}.Health"
FILE = "grpc/health/v1/health.proto"
_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
_SERVING = bytes((0x08, _STATUSES.index("SERVING")))
_NOT_SERVING = bytes((0x08, _STATUSES.index("NOT_SERVING")))


def encode_status(is_ready: bool) -> bytes:
    """A HealthCheckResponse."""
    return _SERVING if is_ready else _NOT_SERVING


class HealthService:
    """Says whether the server is ready, and tells those who watch when that changes."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._watchers: dict[WatchCall, None] = {}

    def is_ready(self) -> ReadyResult:
        """Whether the server is ready; models that have a word to say are asked."""
        return self._readiness.server()

    def status(self) -> bytes:
        """A HealthCheckResponse of what is known without asking models."""
        return encode_status(self._readiness.is_serving())

    def watch(self, call: WatchCall) -> None:
        """Tell a call of changes until it ends."""
        self._watchers[call] = None

    def unwatch(self, call: WatchCall) -> None:
        """Forget a call."""
        self._watchers.pop(call, None)

    def notify(self) -> None:
        """Called every now and then: tell of a change."""
        if self._watchers:
            status = self.status()
            for call in self._watchers:
                call.tell(status)


class CheckCall(UnaryCall):
    """Health/Check."""

    __slots__ = ("_service",)

    def __init__(
        self, service: HealthService, connection: CallConnection, stream_id: int, head: CallHead
    ) -> None:
        super().__init__(connection, stream_id, head)
        self._service = service

    def on_request(self, message: Buffer) -> None:
        """Answer with the status as it is now."""
        is_ready = self._service.is_ready()
        if isinstance(is_ready, bool):
            self.respond([encode_status(is_ready)])
        else:
            self.connection.work.serve_later(self, self._respond_later(is_ready))

    async def _respond_later(self, is_ready: Coroutine[Any, Any, bool]) -> None:
        status = encode_status(await is_ready)
        if self.is_open:
            self.respond([status])


class WatchCall(Call):
    """Health/Watch: the status now, and every other one that follows."""

    __slots__ = ("_service", "_told")

    def __init__(
        self, service: HealthService, connection: CallConnection, stream_id: int, head: CallHead
    ) -> None:
        super().__init__(connection, stream_id, head)
        self._service = service
        self._told = b""

    def on_message(self, message: Buffer) -> None:
        """Begin to tell."""
        self._service.watch(self)
        self.tell(self._service.status())

    def tell(self, status: bytes) -> None:
        """Send a status unless the client has it already."""
        if status != self._told:
            self._told = status
            self.send([status])

    def on_abandoned(self) -> None:
        """Stop telling."""
        self._service.unwatch(self)


def descriptor() -> descriptor_pb2.FileDescriptorProto:
    """The definition of the service."""
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
