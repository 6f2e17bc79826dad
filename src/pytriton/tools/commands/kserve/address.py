# SPDX-License-Identifier: Apache-2.0
"""Addresses of servers as a person types them."""

from __future__ import annotations

import dataclasses

from pytriton.client.exceptions import PyTritonClientInvalidUrlError
from pytriton.client.url import TritonUrl
from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT, DEFAULT_METRICS_PORT

_PLAIN = {"http": "http", "https": "http", "grpc": "grpc", "grpcs": "grpc"}
_TLS_PORT = 443


class AddressError(ValueError):
    """An address cannot be understood."""


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    protocol: str  # "http" or "grpc"
    uses_tls: bool
    host: str  # an IPv6 address has no brackets
    port: int
    path: str = ""  # before the paths of the protocol, such as behind a gateway

    @property
    def host_and_port(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        scheme = f"{self.protocol}s" if self.uses_tls else self.protocol
        return f"{scheme}://{self.host_and_port}{self.path}"


def parse_address(text: str, protocol: str | None = None) -> Address:
    """Read an address: `[scheme://]host[:port][/path]`.

    Args:
        text: the address; schemes are http, https, grpc and grpcs.
        protocol: "http" or "grpc" where the address has no scheme; HTTP by default.

    Raises:
        AddressError: The address is malformed, or its scheme is not the protocol.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = protocol or "http", text
    if scheme not in _PLAIN:
        raise AddressError(
            f"expected an address such as localhost:8000 or grpc://localhost:8001, got '{text}'"
        )
    plain = _PLAIN[scheme]
    if protocol is not None and plain != protocol:
        raise AddressError(f"expected an address for {protocol}, got '{text}'")
    where, slash, path = rest.partition("/")
    try:
        url = TritonUrl.from_url(f"{plain}://{where}")
    except PyTritonClientInvalidUrlError as error:
        raise AddressError(
            f"expected an address such as localhost:8000, got '{text}'; {error}"
        ) from error
    uses_tls = scheme != plain
    is_bare = not where.rpartition("]")[2].rpartition(":")[2].isdigit() or ":" not in where
    port = _TLS_PORT if uses_tls and is_bare else url.port
    return Address(plain, uses_tls, url.hostname, port, f"{slash}{path}".rstrip("/"))


def metrics_address(server: Address) -> Address:
    """Guess where the metrics of a server are: two ports after HTTP, as the defaults are."""
    if server.port in (DEFAULT_HTTP_PORT, DEFAULT_GRPC_PORT) or server.uses_tls:
        return Address("http", uses_tls=False, host=server.host, port=DEFAULT_METRICS_PORT)
    port = server.port + (2 if server.protocol == "http" else 1)
    return Address("http", uses_tls=False, host=server.host, port=min(port, 65535))
