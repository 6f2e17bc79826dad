# SPDX-License-Identifier: Apache-2.0
"""Parses server addresses."""

from __future__ import annotations

import dataclasses
import urllib.parse

from pytriton.client.exceptions import PyTritonClientInvalidUrlError
from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT

_DEFAULT_PORTS = {"http": DEFAULT_HTTP_PORT, "grpc": DEFAULT_GRPC_PORT}
_ENCRYPTED = {"https": "http", "grpcs": "grpc"}
_SCHEMES = (*_DEFAULT_PORTS, *_ENCRYPTED)  # users sometimes write two of them
_TLS_PORT = 443


@dataclasses.dataclass(frozen=True)
class TritonUrl:
    """A server's address.

    Args:
        scheme: "http" or "grpc", also of encrypted connections.
        hostname: name or IP address; an IPv6 address has no brackets.
        port: TCP port.
        uses_tls: whether connections are encrypted, as those of "https" and "grpcs".
    """

    scheme: str
    hostname: str
    port: int
    uses_tls: bool = False

    @classmethod
    def from_url(cls, url: str) -> TritonUrl:
        """Parse an address: `[scheme://]host[:port]`.

        Args:
            url: the address; the default scheme is http, the default port that of the protocol, or
                443 for https and grpcs. A path and credentials are ignored.

        Returns:
            The parsed address.

        Raises:
            PyTritonClientInvalidUrlError: The address is malformed.
        """
        if not isinstance(url, str):
            raise PyTritonClientInvalidUrlError(
                f"Invalid url {url!r}. Expected a string, got {type(url).__name__}."
            )
        try:
            parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
            hostname, port = parts.hostname, parts.port
        except ValueError as error:
            raise PyTritonClientInvalidUrlError(f"Invalid url {url!r}. {error}") from error
        if parts.scheme not in _SCHEMES:
            raise PyTritonClientInvalidUrlError(
                f"Invalid url {url!r}. Expected the scheme http, https, grpc or grpcs, got "
                f"{parts.scheme!r}."
            )
        if not hostname or any(character.isspace() for character in hostname):
            raise PyTritonClientInvalidUrlError(
                f"Invalid url {url!r}. Expected [scheme://]host[:port], got the host {hostname!r}."
            )
        _check_host(url, hostname)
        if port == 0 or (hostname in _SCHEMES and parts.path.startswith("//")):
            raise PyTritonClientInvalidUrlError(
                f"Invalid url {url!r}. Expected [scheme://]host[:port] with one scheme and a port "
                f"from 1 to 65535, got the host {hostname!r} and the port {port}."
            )
        scheme = _ENCRYPTED.get(parts.scheme, parts.scheme)
        uses_tls = scheme != parts.scheme
        if port is None:
            port = _TLS_PORT if uses_tls else _DEFAULT_PORTS[scheme]
        return cls(scheme, hostname, port, uses_tls)

    @property
    def with_scheme(self) -> str:
        """`scheme://host:port`."""
        return f"{self.scheme}{'s' if self.uses_tls else ''}://{self.without_scheme}"

    @property
    def without_scheme(self) -> str:
        """`host:port`."""
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{host}:{self.port}"


def _check_host(url: str, hostname: str) -> None:
    """Refuses names that cannot exist, because waiting for such a server is pointless."""
    try:
        hostname.encode("idna")
    except UnicodeError as error:
        raise PyTritonClientInvalidUrlError(
            f"Invalid url {url!r}. Expected a host's name or address, got {hostname!r}: {error}"
        ) from error
