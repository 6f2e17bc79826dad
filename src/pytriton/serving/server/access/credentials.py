# SPDX-License-Identifier: Apache-2.0
"""Who sends a request, by what its headers and its connection prove; no I/O, time is an argument.

A credential in a header counts before the certificate of the connection. A request with a
credential that is not valid is refused, also if requests without any are allowed. TLS has verified
a certificate before; here is only whose it is.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from pytriton.base.security import API_KEY_HEADER
from pytriton.serving.server.access.decisions import OWN_KEY_HEADER, HeaderLookup, Reason
from pytriton.serving.server.access.keys import PREFIX, has_secret, split_key
from pytriton.serving.server.access.policy import ATTRIBUTES, CertificateRule, Policy
from pytriton.serving.server.access.signature_budget import RunCheck

AUTHORIZATION, API_KEY = b"authorization", API_KEY_HEADER.encode()
_OWN_KEY = OWN_KEY_HEADER.encode()
MAX_CREDENTIAL_BYTES = 16 << 10  # a larger one is not looked at

# Principals that no policy can name.
OWNER = "@owner"  # processes of the user who runs the server, which has all rights
PROBE = "@probe"  # nobody, who may ask for the health of the server if the policy says nothing else


class Identity(NamedTuple):
    """A sender that has proved who it is."""

    principal: str
    until_s: float = math.inf  # since the epoch; then it has to prove that again
    # Whether the connection's certificate says it, or would if there were one.
    is_of_connection: bool = False


class Unauthenticated(NamedTuple):
    """A sender that has not."""

    reason: Reason
    message: str  # for the client
    label: str = ""  # of the credential, for the log: never a secret


class TokenVerifier(Protocol):
    """Decides on tokens of issuers."""

    def verify(self, token: str, now_s: float, run_check: RunCheck) -> Identity | Unauthenticated:
        """Returns who a token is of, or why it is not valid; see `RunCheck`."""


class Credential(NamedTuple):
    """What a header has."""

    text: str
    is_own: bool = False


def read_credential(header: HeaderLookup) -> Credential | Unauthenticated | None:
    """Returns the credential in the headers of a request; None if they have none."""
    bearer, key = header(AUTHORIZATION), header(API_KEY)
    if bearer is None and key is None:
        own = header(_OWN_KEY)
        return None if own is None else Credential(own.decode("latin-1"), is_own=True)
    if max(len(bearer or b""), len(key or b"")) > MAX_CREDENTIAL_BYTES:
        return _malformed(f"expected a credential of at most {MAX_CREDENTIAL_BYTES} bytes")
    found = None if key is None else key.strip()
    if bearer is not None:
        scheme, _, rest = bearer.partition(b" ")
        if scheme.lower() != b"bearer":
            return _malformed("expected 'Bearer' and a key or a token in the header authorization")
        if found is not None and not hmac.compare_digest(rest.strip(), found):
            return _malformed("expected one credential, got different ones in two headers")
        found = rest.strip()
    if not found or not found.isascii() or b" " in found or b"," in found:
        return _malformed("expected one key or token, got something else")
    return Credential(found.decode("ascii"))


def _malformed(message: str) -> Unauthenticated:
    return Unauthenticated(Reason.MALFORMED, message)


class Authenticator:
    """Decides who sends requests, by one policy.

    `own_key` is that of processes of the user who runs the server; `tokens` decides on tokens.
    """

    def __init__(self, policy: Policy, own_key: str, tokens: TokenVerifier | None) -> None:
        self._keys = policy.keys
        self._principals: Mapping[str, object] = policy.principals
        self._rules: tuple[CertificateRule, ...] = policy.certificates
        self._anonymous = policy.anonymous or PROBE
        self._own_key = own_key
        self._tokens = tokens

    def identify(
        self, credential: Credential, now_s: float, run_check: RunCheck
    ) -> Identity | Unauthenticated:
        """Returns who a credential in a header is of; `run_check` verifies signatures of tokens."""
        if credential.is_own:
            if self._own_key and hmac.compare_digest(
                credential.text.encode("latin-1"), self._own_key.encode()
            ):
                return Identity(OWNER)
            return Unauthenticated(Reason.UNKNOWN_KEY, "the key is not known")
        if credential.text.startswith(PREFIX):
            return self._identify_key(credential.text, now_s)
        if credential.text.count(".") == 2 and self._tokens is not None:
            return self._tokens.verify(credential.text, now_s, run_check)
        return Unauthenticated(Reason.MALFORMED, "the credential is not known")

    def _identify_key(self, key: str, now_s: float) -> Identity | Unauthenticated:
        parts = split_key(key)
        if parts is None:
            return Unauthenticated(Reason.MALFORMED, "the key is not a whole one")
        key_id, secret = parts
        record = self._keys.get(key_id)
        label = f"key {key_id}"
        if not has_secret(record, secret) or record is None:
            return Unauthenticated(Reason.UNKNOWN_KEY, "the key is not known", label)
        # Only who has the secret is told more.
        if record.revoked_s is not None:
            return Unauthenticated(Reason.REVOKED, f"the key {key_id} was revoked", label)
        if now_s >= record.until_s:
            return Unauthenticated(Reason.EXPIRED, f"the key {key_id} has expired", label)
        if record.principal not in self._principals:
            return Unauthenticated(
                Reason.UNKNOWN_PRINCIPAL, f"the key {key_id} is of nobody who has rights", label
            )
        return Identity(record.principal, record.until_s)

    def identify_connection(
        self, certificate: ClientCertificate | None, now_s: float
    ) -> Identity | Unauthenticated:
        """Returns who sends requests without a credential in a header."""
        until_s = math.inf
        if certificate is not None:
            until_s = certificate.until_s
            if now_s >= until_s:
                return Unauthenticated(
                    Reason.EXPIRED, "the certificate has expired", certificate.label
                )
            for rule in self._rules:
                if matches(rule, certificate):
                    return Identity(rule.principal, until_s, is_of_connection=True)
        return Identity(self._anonymous, until_s, is_of_connection=bool(self._rules))


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
