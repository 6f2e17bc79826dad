# SPDX-License-Identifier: Apache-2.0
"""Server reflection, v1 and v1alpha: describes the services to tools such as grpcurl.

The two versions differ only in their package. Their messages are in a separate descriptor pool, so
that a process may also import the official module for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from pytriton.base.protos import model_config_pb2, service_pb2
from pytriton.protocol.grpc import GrpcError, GrpcStatus
from pytriton.serving.server.api.turns import message_units
from pytriton.serving.server.grpc import health
from pytriton.serving.server.grpc.call import GrpcCall
from pytriton.serving.server.grpc.call_state import CLIENT

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.grpc import CallHead
    from pytriton.serving.server.grpc.connection import GrpcConnection

PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")

_Field = descriptor_pb2.FieldDescriptorProto
# Message -> fields: name, number, type (a message's name or a scalar), repeated, in the oneof.
_MESSAGES: dict[str, tuple[tuple[str, int, str | int, bool, bool], ...]] = {
    "ExtensionRequest": (
        ("containing_type", 1, _Field.TYPE_STRING, False, False),
        ("extension_number", 2, _Field.TYPE_INT32, False, False),
    ),
    "ServerReflectionRequest": (
        ("host", 1, _Field.TYPE_STRING, False, False),
        ("file_by_filename", 3, _Field.TYPE_STRING, False, True),
        ("file_containing_symbol", 4, _Field.TYPE_STRING, False, True),
        ("file_containing_extension", 5, "ExtensionRequest", False, True),
        ("all_extension_numbers_of_type", 6, _Field.TYPE_STRING, False, True),
        ("list_services", 7, _Field.TYPE_STRING, False, True),
    ),
    "FileDescriptorResponse": (("file_descriptor_proto", 1, _Field.TYPE_BYTES, True, False),),
    "ExtensionNumberResponse": (
        ("base_type_name", 1, _Field.TYPE_STRING, False, False),
        ("extension_number", 2, _Field.TYPE_INT32, True, False),
    ),
    "ServiceResponse": (("name", 1, _Field.TYPE_STRING, False, False),),
    "ListServiceResponse": (("service", 1, "ServiceResponse", True, False),),
    "ErrorResponse": (
        ("error_code", 1, _Field.TYPE_INT32, False, False),
        ("error_message", 2, _Field.TYPE_STRING, False, False),
    ),
    "ServerReflectionResponse": (
        ("valid_host", 1, _Field.TYPE_STRING, False, False),
        ("original_request", 2, "ServerReflectionRequest", False, False),
        ("file_descriptor_response", 4, "FileDescriptorResponse", False, True),
        ("all_extension_numbers_response", 5, "ExtensionNumberResponse", False, True),
        ("list_services_response", 6, "ListServiceResponse", False, True),
        ("error_response", 7, "ErrorResponse", False, True),
    ),
}


def _describe(package: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}/reflection.proto", package=package, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if any(is_choice for *_, is_choice in fields):
            message.oneof_decl.add(
                name="message_request" if "Request" in name else "message_response"
            )
        for field_name, number, kind, is_repeated, is_choice in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = _Field.LABEL_REPEATED if is_repeated else _Field.LABEL_OPTIONAL
            field.type = _Field.TYPE_MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                field.type_name = f".{package}.{kind}"
            if is_choice:
                field.oneof_index = 0
    file.service.add(name="ServerReflection").method.add(
        name="ServerReflectionInfo",
        input_type=f".{package}.ServerReflectionRequest",
        output_type=f".{package}.ServerReflectionResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return file


class ReflectionService:
    """Answers requests of one version of the protocol; both describe the same services."""

    def __init__(self, package: str) -> None:
        self._files: dict[str, Any] = {}
        self._file_of: dict[str, str] = {}  # by symbol
        for file in _served_files():
            self._files[file.name] = file
            self._file_of.update(dict.fromkeys(_symbols(file), file.name))
        pool = descriptor_pool.DescriptorPool()
        pool.Add(_describe(package))
        self._request_class, self._response_class = (
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
            for name in ("ServerReflectionRequest", "ServerReflectionResponse")
        )

    def answer(self, message: Buffer) -> bytes:
        """Returns the response to a request; it contains an error if nothing was found."""
        try:
            request = self._request_class.FromString(bytes(message))
        except DecodeError:
            raise GrpcError(GrpcStatus.INTERNAL, "Unable to parse request") from None
        response = self._response_class(valid_host=request.host, original_request=request)
        choice = request.WhichOneof("message_request")
        if choice == "list_services":
            for file in self._files.values():
                for service in file.service:
                    response.list_services_response.service.add(
                        name=f"{file.package}.{service.name}"
                    )
        elif choice == "file_by_filename":
            self._add_file(request.file_by_filename, request.file_by_filename, response)
        elif choice == "file_containing_symbol":
            symbol = request.file_containing_symbol
            self._add_file(self._file_of.get(symbol), symbol, response)
        elif choice == "all_extension_numbers_of_type" and (
            request.all_extension_numbers_of_type in self._file_of
        ):
            name = request.all_extension_numbers_of_type
            response.all_extension_numbers_response.base_type_name = name  # it has no extensions
        else:
            _add_error(response, f"expected something that is served, got {choice}")
        encoded: bytes = response.SerializeToString()
        return encoded

    def _add_file(self, name: str | None, wanted: str, response: Any) -> None:
        if name not in self._files:
            _add_error(response, f"expected a file or symbol that is served, got {wanted!r}")
            return
        waiting = [name]
        seen: set[str] = set()
        while waiting:
            file = self._files[waiting.pop()]
            if file.name not in seen:
                seen.add(file.name)
                proto = file.SerializeToString()
                response.file_descriptor_response.file_descriptor_proto.append(proto)
                waiting.extend(file.dependency)


class ReflectionCall(GrpcCall):
    """ServerReflectionInfo: a response to each request."""

    __slots__ = ("_service",)

    def __init__(
        self, service: ReflectionService, connection: GrpcConnection, stream_id: int, head: CallHead
    ) -> None:
        super().__init__(connection, stream_id, head)
        self._service = service

    def on_message(self, message: Buffer) -> None:
        answer = self._service.answer(message)
        turn = self.connection.turn
        turn.spend(message_units(answer))
        if not self.send([answer]):
            self.waits |= CLIENT
        elif turn.is_over:
            self.wait_for_turn()

    def on_writable(self) -> None:
        """Process the requests that were held because the client read slowly."""
        self.waits &= ~CLIENT
        self.resume_input()

    def on_half_close(self) -> None:
        self.finish()


def _served_files() -> Iterable[Any]:
    for module in (service_pb2, model_config_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        yield file
    yield health.descriptor()
    for package in PACKAGES:
        yield _describe(package)


def _symbols(file: Any) -> Iterable[str]:
    """Yields the full names of the symbols that a file defines."""
    for service in file.service:
        name = f"{file.package}.{service.name}"
        yield name
        yield from (f"{name}.{method.name}" for method in service.method)
    yield from (f"{file.package}.{item.name}" for item in file.enum_type)
    for message in file.message_type:
        yield from _message_symbols(f"{file.package}.{message.name}", message)


def _message_symbols(name: str, message: Any) -> Iterable[str]:
    yield name
    yield from (f"{name}.{item.name}" for item in message.enum_type)
    yield from (f"{name}.{item.name}" for item in message.field)
    for nested in message.nested_type:
        yield from _message_symbols(f"{name}.{nested.name}", nested)


def _add_error(response: Any, message: str) -> None:
    response.error_response.error_code = int(GrpcStatus.NOT_FOUND)
    response.error_response.error_message = message
