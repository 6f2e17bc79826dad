# SPDX-License-Identifier: Apache-2.0
import base64
import os

import pytest

from pytriton.base.security import (
    DEFAULT_PROTECTED_ENDPOINTS,
    TRITON_ACCESS_HEADER,
    VALID_TRITON_ENDPOINTS,
    TritonSecurityConfig,
)
from pytriton.exceptions import PyTritonValidationError


def test_default_restricts_the_default_endpoints_with_a_random_token(monkeypatch):
    monkeypatch.setattr(os, "urandom", bytes)

    config = TritonSecurityConfig()

    assert config.access_token == "A" * 43  # 32 bytes
    assert config.restricted_endpoints == DEFAULT_PROTECTED_ENDPOINTS
    assert config.restricted_endpoints is not DEFAULT_PROTECTED_ENDPOINTS


def test_random_token_does_not_read_as_an_option_of_a_command(monkeypatch):
    tokens = map(base64.urlsafe_b64decode, ["-first--", "--second", "third-ok"])
    monkeypatch.setattr(os, "urandom", lambda size: next(tokens))

    assert TritonSecurityConfig().access_token == "third-ok"


def test_two_configs_have_different_tokens():
    assert TritonSecurityConfig().access_token != TritonSecurityConfig().access_token


@pytest.mark.parametrize("token", [None, "secret"])
def test_empty_list_restricts_nothing(token):
    config = TritonSecurityConfig(access_token=token, restricted_endpoints=[])

    assert config.access_token == token
    assert config.restrictions() == []


def test_restrictions_read_as_the_server_takes_them():
    config = TritonSecurityConfig("secret", ["trace", "logging"])

    assert config.restrictions() == ["trace,logging:triton-access-token=secret"]
    assert TRITON_ACCESS_HEADER == "triton-access-token"


@pytest.mark.parametrize(
    "own, others",
    [
        ("inference:key=value", ["trace,logging:triton-access-token=secret"]),
        ("inference,trace:key=value", ["logging:triton-access-token=secret"]),
        ("logging,trace:key=value", []),
        ("nonsense", ["trace,logging:triton-access-token=secret"]),
    ],
)
def test_group_of_a_user_decides_about_its_endpoints(own, others):
    config = TritonSecurityConfig("secret", ["trace", "logging"])

    assert config.restrictions(own) == [own, *others]


def test_unknown_endpoints_are_named_in_order():
    with pytest.raises(PyTritonValidationError, match="Invalid endpoint names: aa, zz") as caught:
        TritonSecurityConfig(restricted_endpoints=["zz", "trace", "aa"])

    assert str(caught.value).endswith(", ".join(sorted(VALID_TRITON_ENDPOINTS)))


def test_empty_token_is_refused():
    with pytest.raises(PyTritonValidationError, match="non-empty access token"):
        TritonSecurityConfig(access_token="")


def test_token_is_not_shown():
    assert "secret" not in repr(TritonSecurityConfig(access_token="secret"))
