# SPDX-License-Identifier: Apache-2.0
"""Settings of the log as clients write and read them; the texts are the real server's."""

from __future__ import annotations

import json

import pytest

from pytriton.base.errors import ErrorCode, ServerError
from pytriton.base.protos import service_pb2
from pytriton.protocol.settings import (
    log_settings_fields,
    read_log_settings,
    read_log_settings_pb,
)

ALL = {
    "log_file": "",
    "log_info": True,
    "log_warning": False,
    "log_error": True,
    "log_verbose_level": 3,
    "log_format": "ISO8601",
}
CHANGES = {name: value for name, value in ALL.items() if name != "log_file"}
FIXED = "log file location can not be updated through network protocol"


def request(**settings):
    made = service_pb2.LogSettingsRequest()
    for name, value in settings.items():
        setting = made.settings[name]
        kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}.get(type(value))
        if kind:
            setattr(setting, kind, value)
    return made


def http_error(body):
    with pytest.raises(ServerError) as caught:
        read_log_settings(body if isinstance(body, bytes) else json.dumps(body).encode())
    return caught.value.code, caught.value.message


def grpc_error(**settings):
    with pytest.raises(ServerError) as caught:
        read_log_settings_pb(request(**settings))
    return caught.value.code, caught.value.message


def test_all_changes_are_read():
    assert read_log_settings(json.dumps(CHANGES).encode()) == CHANGES
    assert read_log_settings_pb(request(**CHANGES)) == CHANGES


@pytest.mark.parametrize("body", ["{}", "[]", "null", '"x"', '{"x": 1}', '{"log_info": null}'])
def test_what_is_no_setting_changes_nothing(body):
    assert read_log_settings(body.encode()) == {}


def test_first_of_repeated_members_counts():
    assert read_log_settings(b'{"log_info":true,"log_info":false}') == {"log_info": True}


def test_unknown_settings_of_grpc_change_nothing():
    assert read_log_settings_pb(request(x="y", z=None)) == {}


@pytest.mark.parametrize("level, kept", [(2**31, 2**31 - 1), (2**64 - 1, 2**31 - 1), (0, 0)])
def test_high_levels_are_the_highest(level, kept):
    body = json.dumps({"log_verbose_level": level}).encode()

    assert read_log_settings(body) == {"log_verbose_level": kept}


@pytest.mark.parametrize("value", ["x", "", 1])
def test_file_is_never_changed(value):
    assert http_error({"log_file": value}) == (ErrorCode.UNSUPPORTED, FIXED)
    assert grpc_error(log_file=value) == (ErrorCode.UNSUPPORTED, FIXED)


def test_file_of_null_is_ignored_over_http_only():
    assert read_log_settings(b'{"log_file": null}') == {}
    assert grpc_error(log_file=None) == (ErrorCode.UNSUPPORTED, FIXED)


@pytest.mark.parametrize("name", ["log_info", "log_warning", "log_error"])
@pytest.mark.parametrize("value", [1, "true"])
def test_switch_is_a_boolean(name, value):
    text = "attempt to access JSON non-boolean as boolean"

    assert http_error({name: value}) == (ErrorCode.INTERNAL, text)
    assert grpc_error(**{name: value}) == (
        ErrorCode.INVALID_ARG,
        f"expect boolean for '{name}'",
    )


@pytest.mark.parametrize("value", [-1, 1.5, "1", True, 2**64, []])
def test_level_is_an_unsigned_integer(value):
    text = "attempt to access JSON non-unsigned-integer as unsigned-integer"

    assert http_error({"log_verbose_level": value}) == (ErrorCode.INTERNAL, text)


@pytest.mark.parametrize("value", ["1", True, None])
def test_level_of_grpc_is_an_integer(value):
    text = "expect int32 for 'log_verbose_level'"

    assert grpc_error(log_verbose_level=value) == (ErrorCode.INVALID_ARG, text)


def test_format_is_a_known_text():
    assert http_error({"log_format": 1}) == (
        ErrorCode.INTERNAL,
        "attempt to access JSON non-string as string",
    )
    assert grpc_error(log_format=1) == (
        ErrorCode.INVALID_ARG,
        "expect string for 'log_format'",
    )
    assert http_error({"log_format": "iso8601"}) == (
        ErrorCode.UNAVAILABLE,
        "invalid argument for --log_format, got: iso8601",
    )
    assert grpc_error(log_format="") == (
        ErrorCode.INVALID_ARG,
        "invalid argument for log_format, got: ",
    )


def test_first_error_is_that_of_the_first_setting():
    changes = {"log_format": "x", "log_verbose_level": "x", "log_error": 1}

    assert http_error(changes)[1] == "attempt to access JSON non-boolean as boolean"
    assert grpc_error(**changes)[1] == "expect boolean for 'log_error'"


def test_malformed_body_is_refused():
    assert http_error(b"{") == (
        ErrorCode.INTERNAL,
        "failed to parse the request JSON buffer: Missing a name for object member. at 1",
    )


def test_settings_are_shown_with_their_types():
    response = service_pb2.LogSettingsResponse(**log_settings_fields(ALL))

    assert {
        name: getattr(setting, setting.WhichOneof("parameter_choice"))
        for name, setting in response.settings.items()
    } == ALL
    assert response.settings["log_verbose_level"].WhichOneof("parameter_choice") == "uint32_param"
