# SPDX-License-Identifier: Apache-2.0
"""Settings of the log over gRPC."""

from __future__ import annotations

import pytest

from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc import GrpcStatus
from tests.server.grpc_fakes import GrpcClient

DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture
def client():
    return GrpcClient()


def answer(client, **settings):
    request = service_pb2.LogSettingsRequest()
    for name, value in settings.items():
        field = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
        setattr(request.settings[name], field, value)
    return client.response(client.call("LogSettings", request.SerializeToString()))


def read(response):
    (message,) = response.messages
    settings = service_pb2.LogSettingsResponse.FromString(message).settings
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in settings.items()
    }


def test_settings_are_shown_and_changed(client):
    before = read(answer(client))
    changed = read(answer(client, log_verbose_level=1, log_format="ISO8601"))

    assert before == DEFAULTS
    assert changed == DEFAULTS | {"log_verbose_level": 1, "log_format": "ISO8601"}
    assert read(answer(client)) == changed


def test_nothing_changes_with_an_error(client):
    refused = answer(client, log_error=False, log_format="x")

    assert GrpcStatus(int(refused.status)) is GrpcStatus.INVALID_ARGUMENT
    assert refused.text == "invalid argument for log_format, got: x"
    assert read(answer(client)) == DEFAULTS
