# SPDX-License-Identifier: Apache-2.0
"""The header that carries an access token, for each protocol."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton.base.security import TRITON_ACCESS_HEADER

__all__ = ["TRITON_ACCESS_HEADER", "create_auth_headers", "extract_access_token_from_headers"]

_HEADERS = {
    "http": TRITON_ACCESS_HEADER,
    "grpc": f"triton-grpc-protocol-{TRITON_ACCESS_HEADER}",
}


def create_auth_headers(access_token: str | None, protocol: str) -> dict[str, str]:
    """Create the headers for requests to protected endpoints.

    Args:
        access_token: the server's token.
        protocol: "http" or "grpc", in any case.

    Returns:
        The header with the token.

    Raises:
        ValueError: The token is missing or the protocol unknown.
    """
    if not access_token:
        raise ValueError(f"access_token cannot be None or empty, got {access_token!r}")
    name = _HEADERS.get(protocol.lower())
    if name is None:
        raise ValueError(f"Invalid protocol '{protocol}'. Must be 'http' or 'grpc'")
    return {name: access_token}


def extract_access_token_from_headers(headers: Mapping[str, str] | None) -> str | None:
    """Return the token in headers of either protocol.

    Args:
        headers: headers of a request; their names may be in any case.

    Returns:
        The token, or None if there is none.

    Raises:
        ValueError: The headers of both protocols are present with different tokens.
    """
    given = {name.lower(): value for name, value in (headers or {}).items()}
    tokens = {given[name] for name in _HEADERS.values() if given.get(name)}
    if len(tokens) > 1:
        raise ValueError(
            "Conflicting authentication headers found: "
            f"expected one token, got different ones in {' and '.join(_HEADERS.values())}"
        )
    return tokens.pop() if tokens else None
