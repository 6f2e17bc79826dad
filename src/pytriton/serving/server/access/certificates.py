# SPDX-License-Identifier: Apache-2.0
"""Certificates of clients: what one says, and whether a rule of a policy means it.

TLS has verified a certificate before; here is only whose it is.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from pytriton.serving.server.access.policy import ATTRIBUTES, CertificateRule


class ClientCertificate(NamedTuple):
    """What a certificate says."""

    fingerprint: str  # of SHA-256, as small hexadecimal digits
    subject: frozenset[tuple[str, str]]  # attributes by OpenSSL's names
    dns: frozenset[str]
    until_s: float

    @property
    def label(self) -> str:
        """Its name in a log."""
        return f"certificate sha256:{self.fingerprint[:16]}"


class Peer(NamedTuple):
    """The other end of a connection."""

    address: str  # without a port; empty: it has none
    certificate: ClientCertificate | None = None


class Transport(Protocol):
    """Tells about the other end, as transports of asyncio and connections do."""

    def get_extra_info(self, name: str) -> Any:
        """Returns a fact; None if it is not known."""


def read_peer(transport: Transport) -> Peer:
    """Returns the other end of a transport."""
    name = transport.get_extra_info("peername")
    address = str(name[0]) if isinstance(name, tuple) and name else ""
    facts = transport.get_extra_info("peercert")
    if not facts:  # empty if nobody has verified it
        return Peer(address)
    der = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return Peer(address, read_certificate(facts, der))


def read_certificate(facts: Mapping[str, Any], der: bytes) -> ClientCertificate:
    """Returns what a certificate says, given what `ssl.SSLObject.getpeercert` returns."""
    subject: Iterable[Iterable[tuple[str, str]]] = facts.get("subject", ())
    names: Iterable[tuple[str, str]] = facts.get("subjectAltName", ())
    return ClientCertificate(
        hashlib.sha256(der).hexdigest(),
        frozenset(pair for group in subject for pair in group),
        frozenset(value.lower() for kind, value in names if kind == "DNS"),
        float(ssl.cert_time_to_seconds(facts["notAfter"])),
    )


def matches(rule: CertificateRule, certificate: ClientCertificate) -> bool:
    """Returns whether all that a rule asks for is in a certificate."""
    if rule.fingerprint and rule.fingerprint != certificate.fingerprint:
        return False
    if rule.dns and rule.dns not in certificate.dns:
        return False
    return all(
        (ATTRIBUTES.get(name, name), value) in certificate.subject for name, value in rule.subject
    )
