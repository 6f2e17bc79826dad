# SPDX-License-Identifier: Apache-2.0
"""The requests of the model_repository extension: what is read of them, and what is refused."""

from __future__ import annotations

import base64
import json

import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError, UnsupportedError
from pytriton.base.protos import service_pb2
from pytriton.protocol.repository import (
    LoadOverrides,
    check_model_name,
    check_repository,
    read_index,
    read_load,
    read_load_parameters,
    read_unload,
    read_unload_parameters,
)

CONTENT = bytes(range(256))
BASE64 = base64.b64encode(CONTENT).decode()
NO_MEMBERS = "attempt to get members for non-object"
NO_BOOLEAN = "attempt to access JSON non-boolean as boolean"
NO_STRING = "attempt to access JSON non-string as string"


def body_of(parameters):
    return json.dumps({"parameters": parameters}).encode()


@pytest.mark.parametrize(
    "body,ready",
    [(b"", False), (b"{}", False), (b'{"x":1}', False), (b'{"ready":true}', True)],
)
def test_index_asks_for_ready_models_where_it_says_so(body, ready):
    assert read_index(body) is ready


def test_load_without_parameters_overrides_nothing():
    for body in (b"", b"{}", b'{"x":1}', body_of({})):
        assert read_load(body) == LoadOverrides(None, {})


def test_load_takes_a_configuration_and_files():
    wrapped = "\r\n".join(BASE64[at : at + 76] for at in range(0, len(BASE64), 76))
    body = body_of(
        {
            "config": "{}",
            "file:1/model.py": BASE64,
            "file:a": wrapped,
            "file:b": "aGk",
            "file:c": "",
        }
    )

    assert read_load(body) == LoadOverrides(
        "{}", {"1/model.py": CONTENT, "a": CONTENT, "b": b"hi", "c": b""}
    )


@pytest.mark.parametrize(
    "body,expected",
    [
        (b"", False),
        (b"{}", False),
        (body_of({}), False),
        (body_of({"other": 1}), False),
        (body_of({"unload_dependents": False}), False),
        (body_of({"unload_dependents": True}), True),
    ],
)
def test_unload_takes_dependents_where_it_says_so(body, expected):
    assert read_unload(body) is expected


MISTAKES = [
    (read_index, b"[", InternalError, "Invalid value. at 1"),
    (read_index, b"[]", InternalError, NO_MEMBERS),
    (read_index, b'{"ready":1}', InvalidArgumentError, "for 'ready': expected a boolean"),
    (read_index, b'{"ready":null}', InvalidArgumentError, "for 'ready': expected a boolean"),
    (read_load, b"{", InternalError, "failed to parse the request JSON buffer"),
    (read_load, b"1", InternalError, NO_MEMBERS),
    (read_load, b'{"parameters":null}', InternalError, NO_MEMBERS),
    (read_load, body_of([]), InternalError, NO_MEMBERS),
    (read_load, body_of({"x": 1}), InternalError, NO_STRING),
    (read_load, body_of({"config": None}), InternalError, NO_STRING),
    (read_load, body_of({"file:x": 1}), InternalError, NO_STRING),
    (read_load, body_of({"x": ""}), InternalError, "unexpected error on creating Triton parameter"),
    (read_load, body_of({"file:x": "a*=="}), InvalidArgumentError, "base64 .* 'file:x'"),
    (read_load, body_of({"file:x": "a"}), InvalidArgumentError, "base64 .* 'file:x'"),
    (read_load, body_of({"file:x": "ä"}), InvalidArgumentError, "base64 .* 'file:x'"),
    (read_load, b'{"parameters":{"config":"\xff"}}', InvalidArgumentError, "UTF-8 .* 'config'"),
    (read_load, b'{"parameters":{"file:\xff":""}}', InvalidArgumentError, "UTF-8"),
    (read_unload, b"[", InternalError, "Invalid value. at 1"),
    (read_unload, body_of(1), InternalError, NO_MEMBERS),
    (read_unload, body_of({"unload_dependents": 1}), InternalError, NO_BOOLEAN),
]


@pytest.mark.parametrize("read,body,kind,text", MISTAKES)
def test_malformed_body_is_refused(read, body, kind, text):
    with pytest.raises(kind, match=text):
        read(body)


def load_request(**parameters):
    request = service_pb2.RepositoryModelLoadRequest()
    for key, (choice, value) in parameters.items():
        setattr(request.parameters[key], choice, value)
    return request.parameters


def test_load_message_takes_a_configuration_and_files():
    parameters = load_request(
        **{"config": ("string_param", "{}"), "file:1/m": ("bytes_param", CONTENT)}
    )

    assert read_load_parameters(parameters) == LoadOverrides("{}", {"1/m": CONTENT})
    assert read_load_parameters({}) == LoadOverrides(None, {})


@pytest.mark.parametrize(
    "key,choice,value,text",
    [
        (
            "config", "bytes_param", b"{}",
            "invalid value type for load parameter 'config', expected string_param.",
        ),
        (
            "file:x", "string_param", "",
            "invalid value type for load parameter 'file:x', expected bytes_param.",
        ),
        ("x", "string_param", "", "unrecognized load parameter 'x'."),
    ],
)  # fmt: skip
def test_load_message_with_a_mistake_is_refused(key, choice, value, text):
    with pytest.raises(InvalidArgumentError) as refused:
        read_load_parameters(load_request(**{key: (choice, value)}))

    assert refused.value.message == text


def test_unload_message_takes_dependents_where_it_says_so():
    request = service_pb2.RepositoryModelUnloadRequest()
    request.parameters["other"].int64_param = 1
    assert not read_unload_parameters(request.parameters)
    request.parameters["unload_dependents"].bool_param = True
    assert read_unload_parameters(request.parameters)

    request.parameters["unload_dependents"].int64_param = 1

    with pytest.raises(InvalidArgumentError) as refused:
        read_unload_parameters(request.parameters)
    assert refused.value.message == (
        "invalid value type for 'unload_dependents' parameter, expected bool_param."
    )


@pytest.mark.parametrize("name", ["", " ", "\t\n"])
@pytest.mark.parametrize("is_path", [True, False])
def test_blank_name_is_refused(name, is_path):
    with pytest.raises(InvalidArgumentError, match="Model name cannot be empty"):
        check_model_name(name, is_path=is_path)


@pytest.mark.parametrize("name", ["..", " .. ", ".", "a/b", "../a", "/", "a\0b"])
def test_name_that_leads_elsewhere_is_refused_where_it_is_a_path(name):
    check_model_name(name, is_path=False)
    with pytest.raises(InvalidArgumentError, match="must not contain path traversal characters"):
        check_model_name(name, is_path=True)


def test_name_of_any_other_letters_passes():
    for name in ("m", "a b", "...", "ä", "a\\b"):
        check_model_name(name, is_path=True)  # raises for a name that is not allowed


def test_repository_must_not_be_named():
    check_repository("")
    with pytest.raises(UnsupportedError) as refused:
        check_repository("r")

    assert refused.value.message == "'repository_name' specification is not supported"
