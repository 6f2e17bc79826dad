# SPDX-License-Identifier: Apache-2.0
"""Parses the request to load a model over gRPC. Its files may be large, so they are not copied.

This takes a few milliseconds at most, whatever a message contains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.protos import service_pb2
from pytriton.protocol.protobuf_fields import LENGTH, FieldError, split_fields
from pytriton.protocol.repository import LoadOverrides, check_repository, read_load_parameters

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer

_Request = service_pb2.RepositoryModelLoadRequest
_REPOSITORY, _MODEL, _PARAMETERS = range(1, 4)
_KEY, _VALUE = 1, 2  # fields of an element of `parameters`
_STRING, _BYTES = 3, 4  # fields of a parameter
# Larger messages are not parsed by protobuf, which copies everything and blocks all other threads.
_WHOLE_BYTES = 64 << 10
MAX_PARAMETERS = 4096
MAX_TEXT_BYTES = 4 << 20  # all names and the configuration together


class ModelLoadRequest(NamedTuple):
    """The name of the model to load, and what replaces its configuration and files."""

    model_name: str
    overrides: LoadOverrides


def read_load_request(message: Buffer) -> ModelLoadRequest:
    """Parse a RepositoryModelLoadRequest.

    Raises:
        ServerError: The request is malformed, or too large apart from its files.
    """
    try:
        if len(message) > _WHOLE_BYTES:
            return _Reader().read(memoryview(message))
        request = _Request.FromString(bytes(message))
    except (DecodeError, FieldError, UnicodeDecodeError):
        raise InternalError("Unable to parse request") from None
    check_repository(request.repository_name)
    return ModelLoadRequest(request.model_name, read_load_parameters(request.parameters))


class _Parameter(NamedTuple):
    """The fields of a ModelRepositoryParameter that a load request uses."""

    choice: str | None = None
    string_param: str = ""
    bytes_param: Buffer = b""

    def WhichOneof(self, _: str) -> str | None:  # noqa: N802  named like the message's method
        return self.choice


class _Reader:
    """Parses one large message."""

    def __init__(self) -> None:
        self._text_bytes = 0

    def read(self, message: memoryview) -> ModelLoadRequest:
        names = {_REPOSITORY: "", _MODEL: ""}
        parameters: dict[str, _Parameter] = {}
        for count, (number, wire_type, _, start, stop) in enumerate(split_fields(message), 1):
            if count > MAX_PARAMETERS:
                raise InvalidArgumentError(
                    f"expected at most {MAX_PARAMETERS} parameters of a load request, got more"
                )
            if wire_type != LENGTH:
                continue
            if number in names:
                names[number] = self._text(message[start:stop])
            elif number == _PARAMETERS:
                key, value = self._read_parameter(message[start:stop])
                parameters[key] = value
        check_repository(names[_REPOSITORY])
        return ModelLoadRequest(names[_MODEL], read_load_parameters(parameters))

    def _read_parameter(self, entry: memoryview) -> tuple[str, _Parameter]:
        key, value = "", _Parameter()
        for count, (number, wire_type, _, start, stop) in enumerate(split_fields(entry), 1):
            _check_fields(count)
            if number == _KEY and wire_type == LENGTH:
                key = self._text(entry[start:stop])
            elif number == _VALUE and wire_type == LENGTH:
                value = self._read_value(entry[start:stop])
        return key, value

    def _read_value(self, content: memoryview) -> _Parameter:
        value = _Parameter()
        for count, (number, wire_type, _, start, stop) in enumerate(split_fields(content), 1):
            _check_fields(count)
            if wire_type != LENGTH:
                value = _Parameter("other")
            elif number == _STRING:
                value = _Parameter("string_param", self._text(content[start:stop]))
            elif number == _BYTES:
                value = _Parameter("bytes_param", bytes_param=content[start:stop])
        return value

    def _text(self, content: memoryview) -> str:
        self._text_bytes += len(content)
        if self._text_bytes > MAX_TEXT_BYTES:
            raise InvalidArgumentError(
                f"expected at most {MAX_TEXT_BYTES} bytes of names and configuration in a load "
                f"request, got at least {self._text_bytes}"
            )
        return str(content, "utf-8")


def _check_fields(count: int) -> None:
    if count > MAX_PARAMETERS:
        raise InvalidArgumentError(
            f"expected at most {MAX_PARAMETERS} fields in a load parameter, got more"
        )
