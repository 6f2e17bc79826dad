# SPDX-License-Identifier: Apache-2.0
"""Who may use a restricted API, and what the others read."""

from __future__ import annotations

import pytest

from pytriton.base.errors import ErrorCode
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.api.authorization import (
    Authorization,
    RestrictedGroup,
    RestrictedProtocol,
    parse_restricted_groups,
)
from pytriton.serving.server.api.status import GRPC_STATUS, HTTP_STATUS

GROUPS = (
    RestrictedGroup(apis=("logging", "trace"), header="Triton-Access-Token", value="sésame"),
    RestrictedGroup(apis=("metadata",), header="other", value="1"),
)


def no_header(name: bytes) -> None:
    return None


@pytest.mark.parametrize("protocol", RestrictedProtocol)
def test_unrestricted_api_needs_no_header(protocol):
    assert Authorization(GROUPS, protocol).refusal("inference", no_header) is None


@pytest.mark.parametrize(
    "protocol,name",
    [
        (RestrictedProtocol.HTTP, b"triton-access-token"),
        (RestrictedProtocol.GRPC, b"triton-grpc-protocol-triton-access-token"),
    ],
)
def test_restricted_api_is_open_to_the_header_with_its_value(protocol, name):
    authorization = Authorization(GROUPS, protocol)

    for api in ("logging", "trace"):
        assert authorization.refusal(api, {name: "sésame".encode()}.get) is None


@pytest.mark.parametrize(
    "protocol,expected",
    [
        (RestrictedProtocol.HTTP, "This API is restricted, expecting header 'Triton-Access-Token'"),
        (
            RestrictedProtocol.GRPC,
            (
                "This protocol is restricted, expecting header "
                "'triton-grpc-protocol-Triton-Access-Token'"
            ),
        ),
    ],
)
@pytest.mark.parametrize("value", [None, b"", b"s\xc3\xa9sam", b"SESAME", b"1"])
def test_restricted_api_is_closed_to_everything_else(protocol, expected, value):
    authorization = Authorization(GROUPS, protocol)

    assert authorization.refusal("logging", lambda name: value) == expected


def test_header_of_one_group_does_not_open_another():
    headers = {b"other": b"1"}

    assert Authorization(GROUPS, RestrictedProtocol.HTTP).refusal("metadata", headers.get) is None
    assert Authorization(GROUPS, RestrictedProtocol.HTTP).refusal("trace", headers.get) is not None


def test_secret_is_in_no_representation():
    assert "sésame" not in repr(GROUPS)
    assert repr(Authorization(GROUPS, RestrictedProtocol.GRPC)) == (
        "<Authorization for logging, metadata, trace>"
    )
    assert repr(Authorization((), RestrictedProtocol.HTTP)) == "<Authorization for nothing>"


def test_groups_are_read_from_their_flags():
    groups = parse_restricted_groups(
        ["shared-memory,model-repository:key=a=b:c", "health:k=v"], RestrictedProtocol.HTTP
    )

    assert groups == (
        RestrictedGroup(
            apis=("shared-memory", "model-repository"),
            header="key",
            value="a=b:c",
        ),
        RestrictedGroup(apis=("health",), header="k", value="v"),
    )


@pytest.mark.parametrize(
    "protocol,noun",
    [(RestrictedProtocol.HTTP, "api"), (RestrictedProtocol.GRPC, "protocol")],
    ids=["http", "grpc"],
)
class TestRefusedFlag:
    def refusal(self, protocol, *flags: str) -> str:
        with pytest.raises(PyTritonValidationError) as caught:
            parse_restricted_groups(flags, protocol)
        return caught.value.message

    def test_unknown_api(self, protocol, noun):
        assert self.refusal(protocol, "foo:k=v") == f"unknown restricted {noun} 'foo' "
        assert self.refusal(protocol, "health,:k=v") == f"unknown restricted {noun} '' "

    def test_api_in_two_groups(self, protocol, noun):
        text = f"restricted {noun} 'health' can not be specified in multiple config groups"

        assert self.refusal(protocol, "health:a=b", "metadata,health:a=c") == text

    @pytest.mark.parametrize("flag", ["hush", "health:hush", "health:=hush", "hush=hush", "h:k="])
    def test_bad_syntax_without_showing_the_secret(self, protocol, noun, flag):
        text = self.refusal(protocol, flag)

        assert f"-restricted-{noun} option format is" in text
        assert "hush" not in text


def test_status_tables_cover_every_error_kind():
    assert set(HTTP_STATUS) == set(GRPC_STATUS) == set(ErrorCode)
    assert len(set(GRPC_STATUS.values())) == len(ErrorCode)
    assert HTTP_STATUS[ErrorCode.UNSUPPORTED] == 501
    assert GRPC_STATUS[ErrorCode.INVALID_ARG] == 3
