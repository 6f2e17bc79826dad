# SPDX-License-Identifier: Apache-2.0
"""Addresses of servers as a person types them, and how connections to them are encrypted."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import ssl
import tempfile
from collections.abc import Iterator

from pytriton.client.exceptions import PyTritonClientInvalidUrlError
from pytriton.client.url import TritonUrl
from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT, DEFAULT_METRICS_PORT

_PLAIN = {"http": "http", "https": "http", "grpc": "grpc", "grpcs": "grpc"}
_TLS_PORT = 443


class AddressError(ValueError):
    """An address cannot be understood."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tls:
    """Encrypted connections.

    Attributes:
        ca_file: Certificates that are trusted, PEM; None: those of the system.
        certificate_file: The certificate that this client shows.
        key_file: The private key of that certificate, PEM.
        certificate_type: PEM or DER.
        key_type: Its type as the user says it; only PEM can be used.
        verify_peer: False accepts any certificate.
        verify_host: False accepts a certificate of another host.
    """

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    certificate_type: str = "PEM"
    key_type: str = "PEM"
    verify_peer: bool = True
    verify_host: bool = True

    def context(self) -> ssl.SSLContext:
        """Returns the settings for sockets.

        Raises:
            OSError, ValueError: A file cannot be used.
        """
        context = ssl.create_default_context(cafile=self.ca_file)
        context.check_hostname = self.verify_peer and self.verify_host
        if not self.verify_peer:
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_file is not None:
            with _as_pem(self.certificate_file, self.certificate_type) as certificate:
                context.load_cert_chain(certificate, self.key_file)
        return context

    def grpc_files(self) -> dict[str, bytes | None]:
        """Returns the arguments of `grpc.ssl_channel_credentials`.

        Raises:
            OSError: A file cannot be read.
        """
        files = {
            "root_certificates": self.ca_file or trusted_certificates(),
            "private_key": self.key_file,
            "certificate_chain": self.certificate_file,
        }
        return {
            name: pathlib.Path(path).read_bytes() if path else None for name, path in files.items()
        }


def trusted_certificates() -> str | None:
    """Returns the file that the variable SSL_CERT_FILE names, which gRPC does not read itself."""
    return os.environ.get("SSL_CERT_FILE") or None


@contextlib.contextmanager
def _as_pem(path: str, kind: str) -> Iterator[str]:
    """Gives the path of a certificate in PEM, which is the only format that `ssl` loads."""
    if kind.upper() != "DER":
        yield path
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(ssl.DER_cert_to_PEM_cert(pathlib.Path(path).read_bytes()))
        file.flush()
        yield file.name


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
    if server.uses_tls and server.port == _TLS_PORT:  # that of a gateway; it decrypts
        return Address("http", uses_tls=False, host=server.host, port=DEFAULT_METRICS_PORT)
    port = server.port + (2 if server.protocol == "http" else 1)
    if server.port in (DEFAULT_HTTP_PORT, DEFAULT_GRPC_PORT):
        port = DEFAULT_METRICS_PORT
    return Address("http", uses_tls=server.uses_tls, host=server.host, port=min(port, 65535))
