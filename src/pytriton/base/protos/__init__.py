# SPDX-License-Identifier: Apache-2.0
"""The messages of gRPC and of model configurations: `service_pb2` and `model_config_pb2`.

They are defined by the .proto files here. At run time protobuf reads `messages.binpb`; after a
change, compile that again in this folder:

    python -m grpc_tools.protoc -I . --include_imports --descriptor_set_out=messages.binpb \
        grpc_service.proto

The messages are in a registry of their own, not in protobuf's default one. So a process may also
import `tritonclient.grpc`, whatever its version: it registers messages of the same names, and
protobuf refuses a second definition that is not equal. Between the two, messages go as bytes.
"""

from __future__ import annotations

import pathlib
import types
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper


def _read_pool() -> Any:
    """Returns a registry with the messages of the .proto files."""
    data = pathlib.Path(__file__).with_name("messages.binpb").read_bytes()
    pool: Any = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _module(file: Any) -> Any:
    """Returns an object with the members of the module that protoc would generate of a file."""
    members: dict[str, Any] = {"DESCRIPTOR": file}
    for name, message in file.message_types_by_name.items():
        members[name] = _message_class(message)
    for name, enum in file.enum_types_by_name.items():
        members[name] = EnumTypeWrapper(enum)
        members.update({value.name: value.number for value in enum.values})
    return types.SimpleNamespace(**members)


def _message_class(message: Any) -> Any:
    made: Any = message_factory.GetMessageClass(message)
    for nested in message.nested_types:
        if not hasattr(made, nested.name):  # protobuf without its extension module
            setattr(made, nested.name, _message_class(nested))
    return made


_pool = _read_pool()
service_pb2: Any = _module(_pool.FindFileByName("grpc_service.proto"))
model_config_pb2: Any = _module(_pool.FindFileByName("model_config.proto"))
