# SPDX-License-Identifier: Apache-2.0
"""Requests to load a model over gRPC, small and large."""

from __future__ import annotations

import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.base.protos import service_pb2
from pytriton.protocol import repository_pb
from pytriton.protocol.repository_pb import MAX_PARAMETERS, read_load_request

LARGE = bytes(100_000)


def load_request(name: str = "m", repository: str = "", **parameters) -> bytes:
    request = service_pb2.RepositoryModelLoadRequest(model_name=name, repository_name=repository)
    for key, value in parameters.items():
        parameter = request.parameters[key.replace("__", ":")]
        if isinstance(value, bytes):
            parameter.bytes_param = value
        elif isinstance(value, str):
            parameter.string_param = value
        else:
            parameter.int64_param = value
    content: bytes = request.SerializeToString()
    return content


@pytest.mark.parametrize("content", [b"x = 1", LARGE], ids=["small", "large"])
def test_load_request_says_what_the_message_says(content):
    request = read_load_request(load_request(config="{}", file__a=content, file__b=b""))

    assert request.model_name == "m"
    assert request.overrides.config == "{}"
    assert {path: bytes(file) for path, file in request.overrides.files.items()} == {
        "a": content,
        "b": b"",
    }


def test_large_file_is_not_copied():
    message = bytearray(load_request(file__a=LARGE))
    file = read_load_request(message).overrides.files["a"]
    message[-1] = 7

    assert file[-1] == 7


@pytest.mark.parametrize("size", [0, len(LARGE)])
@pytest.mark.parametrize(
    "parameters,message",
    [
        ({"config": b"{}"}, "invalid value type for load parameter 'config'"),
        ({"config": 1}, "invalid value type for load parameter 'config'"),
        ({"file__a": "text"}, "invalid value type for load parameter 'file:a'"),
        ({"other": "x"}, "unrecognized load parameter 'other'"),
    ],
)
def test_wrong_parameter_is_refused_in_the_same_words(parameters, message, size):
    with pytest.raises(InvalidArgumentError, match=message):
        read_load_request(load_request(file__large=bytes(size), **parameters))


@pytest.mark.parametrize("content", [b"", LARGE])
def test_repository_is_refused(content):
    with pytest.raises(UnsupportedError, match="repository_name"):
        read_load_request(load_request(repository="r", file__a=content))


@pytest.mark.parametrize("damage", [b"\x1a\x7f", b"\x12\x01\xff", b"\x0b"])
@pytest.mark.parametrize("content", [b"", LARGE])
def test_damaged_request_is_refused(content, damage):
    with pytest.raises(InternalError, match="Unable to parse request"):
        read_load_request(load_request(file__a=content) + damage)


def test_too_many_parameters_are_refused():
    with pytest.raises(InvalidArgumentError, match=f"at most {MAX_PARAMETERS} parameters"):
        read_load_request(b"\x1a\x00" * (1 << 20))


def test_too_many_fields_of_a_parameter_are_refused():
    entry = service_pb2.RepositoryModelLoadRequest()
    entry.parameters["config"].string_param = "{}"
    value = b"\x1a\x00" * (1 << 20)  # empty texts
    content = b"\x12" + b"\x80\x80\x80\x01" + value
    message = b"\x1a\x85\x80\x80\x01" + content

    with pytest.raises(InvalidArgumentError, match=f"at most {MAX_PARAMETERS} fields"):
        read_load_request(message)


def test_configuration_that_is_very_long_is_refused():
    text = "a" * (repository_pb.MAX_TEXT_BYTES + 1)
    with pytest.raises(InvalidArgumentError, match=f"at most {repository_pb.MAX_TEXT_BYTES} bytes"):
        read_load_request(load_request(config=text))
