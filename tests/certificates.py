# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests: an authority, and what it issues to servers and clients."""

from __future__ import annotations

import ipaddress
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Issued:
    """A certificate with its key, in PEM."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)
        self.der = certificate.public_bytes(serialization.Encoding.DER)
        self.key = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        self.encrypted_key = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hush"),
        )
        self.serial = certificate.serial_number

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write both files, each by a rename; the paths."""
        paths = (folder / f"{name}.pem", folder / f"{name}.key")
        for path, content in zip(paths, (self.certificate, self.key), strict=True):
            part = path.with_suffix(".part")
            part.write_bytes(content)
            part.rename(path)
        return paths


class Authority:
    """An authority whose certificates are for this machine."""

    def __init__(self, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key, 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str = "localhost", valid: timedelta = 30 * DAY) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), loopback])
        builder = self._builder(subject, key, valid).add_extension(names, critical=False)
        return Issued(builder.sign(self._key, hashes.SHA256()), key)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * DAY)
            .not_valid_after(now + valid)
        )


class CertificateFolder:
    """The files of a server and of its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self.authority.pem)
        self.client_cert, self.client_key = self.authority.issue("client").write(folder, "client")
        self.other_cert, self.other_key = (
            Authority("other").issue("stranger").write(folder, "other")
        )
        self.issued = self.replace()

    @property
    def server_files(self) -> dict[str, Path]:
        return {"tls_cert": self.folder / "server.pem", "tls_key": self.folder / "server.key"}

    def replace(self) -> Issued:
        """Replace the server's certificate and its key, each by a rename."""
        self.issued = self.authority.issue()
        self.issued.write(self.folder, "server")
        return self.issued

    def overwrite(self) -> Issued:
        """Write the server's certificate and its key piece by piece, as some programs do."""
        self.issued = self.authority.issue()
        contents = (self.issued.certificate, self.issued.key)
        for path, content in zip(self.server_files.values(), contents, strict=True):
            with path.open("wb", buffering=0) as file:
                for start in range(0, len(content), 100):
                    file.write(content[start : start + 100])
                    os.fsync(file.fileno())
        return self.issued
