# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from pytriton.client import AsyncioModelClient, ModelClient
from pytriton.client.auth import create_auth_headers, extract_access_token_from_headers

HTTP = "triton-access-token"
GRPC = "triton-grpc-protocol-triton-access-token"


@pytest.mark.parametrize(
    "protocol,name", [("http", HTTP), ("HTTP", HTTP), ("grpc", GRPC), ("gRPC", GRPC)]
)
def test_auth_header_has_the_name_of_its_protocol(protocol, name):
    assert create_auth_headers("secret", protocol) == {name: "secret"}


@pytest.mark.parametrize("token", [None, ""])
def test_auth_header_needs_a_token(token):
    with pytest.raises(ValueError, match="access_token cannot be None or empty"):
        create_auth_headers(token, "http")


def test_auth_header_needs_a_protocol_that_exists():
    with pytest.raises(ValueError, match=r"Invalid protocol 'ftp'. Must be 'http' or 'grpc'"):
        create_auth_headers("secret", "ftp")


@pytest.mark.parametrize(
    "headers,token",
    [
        (None, None),
        ({}, None),
        ({"other": "x"}, None),
        ({HTTP: "secret"}, "secret"),
        ({GRPC: "secret"}, "secret"),
        ({HTTP.title(): "secret"}, "secret"),
        ({HTTP: "secret", GRPC: "secret"}, "secret"),
    ],
)
def test_token_is_found_in_headers(headers, token):
    assert extract_access_token_from_headers(headers) == token


def test_two_different_tokens_in_headers_are_refused():
    with pytest.raises(ValueError, match="Conflicting authentication headers found"):
        extract_access_token_from_headers({HTTP: "one", GRPC: "other"})


@pytest.mark.parametrize("kind", [ModelClient, AsyncioModelClient])
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_empty_token_of_a_client_is_refused(kind, scheme):
    with pytest.raises(ValueError, match="access_token cannot be None or empty"):
        kind(f"{scheme}://localhost", "Model", access_token="")
