# SPDX-License-Identifier: Apache-2.0
"""The messages of gRPC and of configurations are those of Triton's clients."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import tritonclient.grpc

from pytriton.base import protos
from pytriton.base.package import PACKAGE_FOLDER

FILES = {"grpc_service.proto": "service_pb2", "model_config.proto": "model_config_pb2"}
_DEFINITION = re.compile(r"\s*(?:(?:(?:repeated )?[\w.]+|map<[\w., ]+>) )?(\w+) = (\d+)")


def members(file: Any) -> Iterator[tuple[str, int, str]]:
    """Yields the name, the number and the type of each field and enum value of a file."""
    for enum in file.enum_types_by_name.values():
        yield from _values(enum)
    for message in file.message_types_by_name.values():
        yield from _fields(message)


def _fields(message: Any) -> Iterator[tuple[str, int, str]]:
    for field in message.fields:
        other = field.message_type or field.enum_type
        kind = f"{field.type} {field.label} {'' if other is None else other.full_name}"
        yield field.full_name, field.number, kind
    for enum in message.enum_types:
        yield from _values(enum)
    for nested in message.nested_types:
        yield from _fields(nested)


def _values(enum: Any) -> Iterator[tuple[str, int, str]]:
    for value in enum.values:
        yield f"{enum.full_name}.{value.name}", value.number, "value"


@pytest.mark.parametrize("module", FILES.values())
def test_every_member_is_that_of_the_clients_messages(module):
    ours = set(members(getattr(protos, module).DESCRIPTOR))
    theirs = set(members(getattr(tritonclient.grpc, module).DESCRIPTOR))

    assert theirs <= ours


@pytest.mark.parametrize("module", FILES.values())
def test_methods_are_those_of_the_clients_service(module):
    ours, theirs = (
        {
            (method.full_name, method.input_type.full_name, method.output_type.full_name)
            for service in getattr(package, module).DESCRIPTOR.services_by_name.values()
            for method in service.methods
        }
        for package in (protos, tritonclient.grpc)
    )

    assert theirs <= ours


@pytest.mark.parametrize("name,module", FILES.items())
def test_compiled_messages_are_those_of_the_file(name, module):
    text = (PACKAGE_FOLDER / "base" / "protos" / name).read_text()
    written = sorted(
        (found[1], int(found[2]))
        for line in text.splitlines()
        if (found := _DEFINITION.match(line))
    )

    compiled = sorted(
        (full_name.rpartition(".")[2], number)
        for full_name, number, _ in members(getattr(protos, module).DESCRIPTOR)
        if not re.search(r"Entry\.(key|value)$", full_name)
    )
    assert written == compiled


def test_messages_work_without_protobufs_extension_module():
    program = (
        "from pytriton.base.protos import model_config_pb2 as c, service_pb2 as s; "
        "s.ModelMetadataResponse.TensorMetadata(name='x'); "
        "assert c.ModelQueuePolicy.TimeoutAction.values() and c.DataType.Name(c.TYPE_FP32)"
    )
    environment = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}

    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
