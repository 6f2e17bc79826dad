# SPDX-License-Identifier: Apache-2.0
"""Signers of models with fresh keys: a key, certificates of an authority, and a sigstore instance.

The sigstore instance is small but whole: an authority for certificates of identities, a log of
certificates and a log of signatures, each with a key of its own. Nothing of it uses the network.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import itertools
import json
import os
import struct
from pathlib import Path
from typing import Any

import rfc8785
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from model_signing import hashing, signing

NOW = dt.datetime.now(dt.timezone.utc)
DAY = dt.timedelta(days=1)
_numbers = itertools.count(1)
_PRECERTIFICATE_TIMESTAMPS = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_ISSUER_OF_IDENTITY = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _public_der(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _hashing(folder: Path, signature: Path) -> hashing.Config:
    return hashing.Config().set_ignored_paths(paths=[os.path.relpath(signature, folder)])


class KeySigner:
    """Signs with a key."""

    def __init__(self, folder: Path) -> None:
        number = next(_numbers)
        self.private, self.public = folder / f"{number}.key", folder / f"{number}.pub"
        key = ec.generate_private_key(ec.SECP256R1())
        self.private.write_bytes(_pem(key))
        self.public.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    @property
    def flags(self) -> list[str]:
        return [f"--model-signing-key={self.public}"]

    def sign(self, model: Path, name: str = "model.sig") -> Path:
        config = signing.Config().use_elliptic_key_signer(private_key=self.private)
        signature = model / name
        config.set_hashing_config(_hashing(model, signature)).sign(model, signature)
        return signature


class CertificateSigner:
    """Signs with a certificate that an authority of its own has issued."""

    def __init__(self, folder: Path, *, begin: Any = NOW - DAY, end: Any = NOW + DAY) -> None:
        number = next(_numbers)
        root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        root_name = _name(f"root {number}")
        root = _certificate(root_name, root_name, root_key, root_key, NOW - 9 * DAY, NOW + 9 * DAY)
        subject = _name(f"signer {number}")
        own = _certificate(subject, root_name, key, root_key, begin, end, is_authority=False)
        self.root, self.own = folder / f"{number}.root.pem", folder / f"{number}.pem"
        self.private = folder / f"{number}.key"
        self.root.write_bytes(root.public_bytes(serialization.Encoding.PEM))
        self.own.write_bytes(own.public_bytes(serialization.Encoding.PEM))
        self.private.write_bytes(_pem(key))

    @property
    def flags(self) -> list[str]:
        return [f"--model-signing-certificates={self.root}"]

    def sign(self, model: Path, name: str = "model.sig") -> Path:
        config = signing.Config().use_certificate_signer(
            private_key=self.private,
            signing_certificate=self.own,
            certificate_chain=[self.root],
        )
        signature = model / name
        config.set_hashing_config(_hashing(model, signature)).sign(model, signature)
        return signature


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    begin: dt.datetime,
    end: dt.datetime,
    *,
    is_authority: bool = True,
    extensions: tuple[tuple[Any, bool], ...] = (),
) -> x509.Certificate:
    others = (
        "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "encipher_only", "decipher_only",
    )  # fmt: skip
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_authority,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                **dict.fromkeys(others, False),
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(issuer_key, hashes.SHA256())


class Sigstore:
    """An instance of sigstore, which signs for identities."""

    issuer = "https://accounts.example.com"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]
        self._root_key, self._certificate_log_key, self._log_key = keys
        self._root_name = _name("identities")
        self._root = _certificate(
            self._root_name, self._root_name, self._root_key, self._root_key,
            NOW - 9 * DAY, NOW + 9 * DAY,
        )  # fmt: skip
        self.trust_root = folder / f"{next(_numbers)}.trusted_root.json"
        self.trust_root.write_text(json.dumps(self._trusted_root()))

    def flags(self, identity: str) -> list[str]:
        return [
            f"--model-signing-identity={identity}",
            f"--model-signing-issuer={self.issuer}",
            f"--model-signing-trust-root={self.trust_root}",
        ]

    def sign(self, model: Path, identity: str, name: str = "model.sig") -> Path:
        """Sign what the package would sign; the statement comes from a signature by a key."""
        signature = KeySigner(self._folder).sign(model, name)
        payload = base64.b64decode(json.loads(signature.read_text())["dsseEnvelope"]["payload"])
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certificate_of(identity, key)
        signed = b"DSSEv1 %d %s %d %s" % (
            len(_PAYLOAD_TYPE), _PAYLOAD_TYPE.encode(), len(payload), payload,
        )  # fmt: skip
        proof = key.sign(signed, ec.ECDSA(hashes.SHA256()))
        bundle = {
            "mediaType": _BUNDLE_TYPE,
            "verificationMaterial": {
                "certificate": {
                    "rawBytes": _text(certificate.public_bytes(serialization.Encoding.DER))
                },
                "tlogEntries": [self._log_entry(payload, proof, certificate)],
            },
            "dsseEnvelope": {
                "payload": _text(payload),
                "payloadType": _PAYLOAD_TYPE,
                "signatures": [{"sig": _text(proof)}],
            },
        }
        signature.write_text(json.dumps(bundle))
        return signature

    def _trusted_root(self) -> dict[str, Any]:
        period = {"start": (NOW - 9 * DAY).isoformat(timespec="seconds").replace("+00:00", "Z")}

        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            return {
                "baseUrl": "https://log.example.com",
                "hashAlgorithm": "SHA2_256",
                "publicKey": {
                    "rawBytes": _text(_public_der(key)),
                    "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": period,
                },
                "logId": {"keyId": _text(hashlib.sha256(_public_der(key)).digest())},
            }

        root = self._root.public_bytes(serialization.Encoding.DER)
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self._log_key)],
            "ctlogs": [log(self._certificate_log_key)],
            "certificateAuthorities": [
                {
                    "subject": {"organization": "example", "commonName": "identities"},
                    "uri": "https://identities.example.com",
                    "certChain": {"certificates": [{"rawBytes": _text(root)}]},
                    "validFor": period,
                }
            ],
            "timestampAuthorities": [],
        }

    def _certificate_of(self, identity: str, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        """A certificate of ten minutes, with the proof that it is in the log of certificates."""
        begin, end = NOW - DAY, NOW - DAY + dt.timedelta(minutes=10)
        extensions: tuple[tuple[Any, bool], ...] = (
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), False),
            (x509.SubjectAlternativeName([x509.RFC822Name(identity)]), True),
            (x509.UnrecognizedExtension(_ISSUER_OF_IDENTITY, self.issuer.encode()), False),
        )
        first = _certificate(
            x509.Name([]), self._root_name, key, self._root_key, begin, end,
            is_authority=False, extensions=extensions,
        )  # fmt: skip
        timestamp_ms = int(begin.timestamp()) * 1000
        to_be_signed = first.tbs_certificate_bytes
        issuer_id = hashlib.sha256(_public_der(self._root_key)).digest()
        entry = struct.pack("!BBQH32s", 0, 0, timestamp_ms, 1, issuer_id)
        entry += len(to_be_signed).to_bytes(3, "big") + to_be_signed + b"\0\0"
        proof = self._certificate_log_key.sign(entry, ec.ECDSA(hashes.SHA256()))
        log_id = hashlib.sha256(_public_der(self._certificate_log_key)).digest()
        timestamp = struct.pack("!B32sQHBBH", 0, log_id, timestamp_ms, 0, 4, 3, len(proof)) + proof
        listed = struct.pack("!H", len(timestamp)) + timestamp
        listed = struct.pack("!H", len(listed)) + listed
        # An octet string in DER; with a signature of P-256 it is shorter than 128 bytes.
        return self._with_timestamps(first, key, bytes([0x04, len(listed)]) + listed)

    def _with_timestamps(
        self, first: x509.Certificate, key: ec.EllipticCurvePrivateKey, timestamps: bytes
    ) -> x509.Certificate:
        """The same certificate with one more extension, without which the log has seen it."""
        builder = (
            x509.CertificateBuilder()
            .subject_name(first.subject)
            .issuer_name(first.issuer)
            .public_key(key.public_key())
            .serial_number(first.serial_number)
            .not_valid_before(first.not_valid_before_utc)
            .not_valid_after(first.not_valid_after_utc)
        )
        for extension in first.extensions:
            builder = builder.add_extension(extension.value, extension.critical)
        builder = builder.add_extension(
            x509.UnrecognizedExtension(_PRECERTIFICATE_TIMESTAMPS, timestamps), critical=False
        )
        return builder.sign(self._root_key, hashes.SHA256())

    def _log_entry(
        self, payload: bytes, proof: bytes, certificate: x509.Certificate
    ) -> dict[str, Any]:
        """The only entry of a log, with the log's promise and its signed state."""
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        body = rfc8785.dumps(
            {
                "apiVersion": "0.0.1",
                "kind": "dsse",
                "spec": {
                    "envelopeHash": {
                        "algorithm": "sha256",
                        "value": hashlib.sha256(payload + proof).hexdigest(),
                    },
                    "payloadHash": {
                        "algorithm": "sha256",
                        "value": hashlib.sha256(payload).hexdigest(),
                    },
                    "signatures": [{"signature": _text(proof), "verifier": _text(pem)}],
                },
            }
        )
        log_id = hashlib.sha256(_public_der(self._log_key)).digest()
        seconds = int((NOW - DAY).timestamp()) + 60
        promise = rfc8785.dumps(
            {
                "body": _text(body),
                "integratedTime": seconds,
                "logID": log_id.hex(),
                "logIndex": 0,
            }
        )
        root = hashlib.sha256(b"\0" + body).digest()
        state = f"log.example.com - 1\n1\n{_text(root)}\n"
        state_proof = self._log_key.sign(state.encode(), ec.ECDSA(hashes.SHA256()))
        checkpoint = f"{state}\n\u2014 log.example.com {_text(log_id[:4] + state_proof)}\n"
        return {
            "logIndex": "0",
            "logId": {"keyId": _text(log_id)},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(seconds),
            "inclusionPromise": {
                "signedEntryTimestamp": _text(
                    self._log_key.sign(promise, ec.ECDSA(hashes.SHA256()))
                )
            },
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": _text(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": checkpoint},
            },
            "canonicalizedBody": _text(body),
        }
