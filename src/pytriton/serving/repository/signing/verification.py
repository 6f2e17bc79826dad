# SPDX-License-Identifier: Apache-2.0
"""The process that verifies the signature of one model with the package model-signing, and ends.

It gets a `Question` on its standard input and writes an `Answer` to its standard output. The
package and what it needs take 70 MB of memory, which the server does not have to keep. No network
is used: the roots of trust are files.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import msgspec

from pytriton.serving.repository.signing.signers import Signers

MAX_SIGNATURE_BYTES = 64 << 20
_MAX_LISTED = 10  # differences that an error names
_MAX_REASON_CHARACTERS = 4000
_ENVELOPE = "dsseEnvelope"
_MATERIAL = "verificationMaterial"
_BUNDLE_MEMBERS = frozenset({"mediaType", _MATERIAL, _ENVELOPE})
_ENVELOPE_MEMBERS = frozenset({"payload", "payloadType", "signatures"})
_PREDICATE = "https://model_signing/signature/v1.0"
_TRUST_CONFIG = "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json"
_TRUSTED_ROOT = "application/vnd.dev.sigstore.trustedroot"
_SIGNING_CONFIG = "application/vnd.dev.sigstore.signingconfig.v0.2+json"
_MISMATCH = "Signature mismatch: "
_DIGEST = re.compile(r"Digest\(algorithm='(\w+)', digest_value=(b'.*?'|b\".*?\")\)(?=')")

Kind = Literal["key", "certificate", "sigstore"]
_SIGNED_BY: dict[Kind, str] = {
    "key": "a signature by a key",
    "certificate": "a signature with a certificate",
    "sigstore": "a signature of sigstore",
}


class Question(msgspec.Struct, frozen=True):
    """A folder that nobody else can change, its signature, and who may have signed it."""

    folder: str
    signature: str  # relative to the folder
    signers: Signers


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    problem: str = ""  # why the signature does not count; empty if it does
    files: tuple[str, ...] = ()  # that are signed, relative to the folder
    signer: str = ""  # who has signed, for people


class RefusedError(Exception):
    """A signature does not count."""


class SignedBundle(msgspec.Struct, frozen=True):
    """What has to be known of a signature before it is verified."""

    kind: Kind
    payload: bytes
    certificates: tuple[bytes, ...] = ()  # in DER, that of the signer first


def read_bundle(content: bytes) -> SignedBundle:
    """Read a signature, which is a sigstore bundle in JSON.

    Members that occur twice, or under two names, are refused: the package that verifies it could
    read another one of them than we do.
    """
    try:
        bundle = _object(content)
        if not bundle.keys() <= _BUNDLE_MEMBERS:
            raise RefusedError(_unknown_member(bundle.keys() - _BUNDLE_MEMBERS))
        envelope, material = bundle[_ENVELOPE], bundle[_MATERIAL]
        if not envelope.keys() <= _ENVELOPE_MEMBERS:
            raise RefusedError(_unknown_member(envelope.keys() - _ENVELOPE_MEMBERS))
        payload = base64.b64decode(envelope["payload"], validate=True)
        if material.get("tlogEntries") or "certificate" in material:
            return SignedBundle("sigstore", payload)
        if "publicKey" in material:
            return SignedBundle("key", payload)
        chain = material["x509CertificateChain"]["certificates"]
        certificates = tuple(base64.b64decode(each["rawBytes"], validate=True) for each in chain)
        return SignedBundle("certificate", payload, certificates)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        text = f"{type(error).__name__}: {error}"
        raise RefusedError(f"a file that is no sigstore bundle of a model ({text})") from error


def _unknown_member(names: set[str]) -> str:
    return f"a sigstore bundle with the unknown member '{min(names)}'"


def _object(content: bytes) -> dict[str, Any]:
    import json  # noqa: PLC0415  only this process needs it

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            raise ValueError("a member occurs twice")
        return members

    value = json.loads(content, object_pairs_hook=unique)
    if not isinstance(value, dict):
        raise TypeError("expected an object")
    return value


def signed_files(payload: bytes) -> tuple[str, ...]:
    """Returns the files that a verified statement is about; those that it ignores are missing."""
    try:
        statement = _object(payload)
        if statement["predicateType"] != _PREDICATE:
            raise RefusedError(
                f"a statement of type '{statement['predicateType']}'; expected '{_PREDICATE}'"
            )
        predicate = statement["predicate"]
        names = [str(each["name"]) for each in predicate["resources"]]
        if predicate["serialization"]["method"] == "shards":
            names = [name.rsplit(":", 2)[0] for name in names]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        text = f"{type(error).__name__}: {error}"
        raise RefusedError(f"a statement without a list of files ({text})") from error
    return tuple(dict.fromkeys(names))


def verify(question: Question) -> Answer:
    """Verify a signature; nothing of the model is executed."""
    folder, signers = Path(question.folder), question.signers
    path = folder / question.signature
    content = path.read_bytes()
    try:
        bundle = read_bundle(content)
        files = signed_files(bundle.payload)
    except RefusedError as error:
        return Answer(problem=_shortened(str(error)))
    path.unlink()  # a statement need not say that it ignores the file with its own signature
    try:
        with tempfile.NamedTemporaryFile(suffix=".sig") as signature:
            signature.write(content)
            signature.flush()
            return _verify_by_any(bundle, files, signers, folder, Path(signature.name))
    finally:
        path.write_bytes(content)


def _verify_by_any(
    bundle: SignedBundle, files: tuple[str, ...], signers: Signers, folder: Path, signature: Path
) -> Answer:
    """Verify a signature with each of the signers of its kind, until one accepts it."""
    candidates = _candidates(bundle.kind, signers)
    if not candidates:
        return Answer(problem=_SIGNED_BY[bundle.kind])
    refusals = []
    for candidate in candidates:
        refusal = _refusal_by(bundle, candidate, signers, folder, signature)
        if not refusal:
            return Answer(files=files, signer=_signer(bundle, candidate))
        refusals.append(refusal)
        if refusal.startswith(_DIFFERENCE):  # the signer was right, so no other one can be
            break
    return Answer(problem=_shortened("; ".join(dict.fromkeys(refusals))))


def _candidates(kind: Kind, signers: Signers) -> tuple[str, ...]:
    if kind == "key":
        return signers.keys
    if kind == "certificate":
        return signers.certificates
    return (signers.identity,) if signers.identity else ()


def _refusal_by(
    bundle: SignedBundle, candidate: str, signers: Signers, folder: Path, signature: Path
) -> str:
    """Returns why a signature is not one of a certain signer; an empty text if it is."""
    try:
        _verify_by(bundle, candidate, signers, folder, signature)
    except Exception as error:  # noqa: BLE001  the package and OpenSSL have many; each refuses
        return _reason(error, bundle)
    return ""


def _verify_by(
    bundle: SignedBundle, candidate: str, signers: Signers, folder: Path, signature: Path
) -> None:
    from model_signing import verifying  # noqa: PLC0415  an extra, and large

    config = verifying.Config()
    if bundle.kind == "key":
        config.use_elliptic_key_verifier(public_key=candidate).verify(folder, signature)
    elif bundle.kind == "certificate":
        config.use_certificate_verifier(certificate_chain=[candidate]).verify(folder, signature)
        _check_certificates_now(bundle.certificates, Path(candidate))
    else:
        with _trust_config(Path(signers.trust_root)) as trust_config:
            config.use_sigstore_verifier(
                identity=signers.identity, oidc_issuer=signers.issuer, trust_config=trust_config
            ).verify(folder, signature)


def _check_certificates_now(chain: tuple[bytes, ...], trusted: Path) -> None:
    """Refuse a chain of which a certificate has expired.

    The package takes the time at which the certificate became valid for that of the signature. But
    such a signature has no proof of its time: who got hold of an old key could sign with it.
    """
    from cryptography import x509  # noqa: PLC0415
    from OpenSSL import crypto  # noqa: PLC0415

    store = crypto.X509Store()
    for certificate in x509.load_pem_x509_certificates(trusted.read_bytes()):
        store.add_cert(crypto.X509.from_cryptography(certificate))
    signer, *others = (
        crypto.X509.from_cryptography(x509.load_der_x509_certificate(each)) for each in chain
    )
    crypto.X509StoreContext(store, signer, others).verify_certificate()


@contextlib.contextmanager
def _trust_config(trust_root: Path) -> Any:
    """Yields a file as the package wants it, also for a trusted root as other tools write it."""
    root = _object(trust_root.read_bytes())
    if not str(root.get("mediaType")).startswith(_TRUSTED_ROOT):
        yield trust_root
        return
    config = {
        "mediaType": _TRUST_CONFIG,
        "trustedRoot": root,
        "signingConfig": {"mediaType": _SIGNING_CONFIG},  # for signing alone
    }
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(msgspec.json.encode(config))
        file.flush()
        yield Path(file.name)


_DIFFERENCE = "a folder that differs from what was signed: "


def _reason(error: Exception, bundle: SignedBundle) -> str:
    """Returns why a signature was refused, in words."""
    text = str(error)
    if isinstance(error, ImportError):
        return f"no answer, as a package is missing ({text}): pip install 'pytriton[signing]'"
    if text.startswith(_MISMATCH):
        return _DIFFERENCE + describe_differences(text.removeprefix(_MISMATCH))
    if not text:  # an InvalidSignature has none
        text = "it does not fit the signed statement"
    if bundle.kind == "certificate":
        return f"a signature with {_signer(bundle, '')}: {text}"
    return f"{_SIGNED_BY[bundle.kind]} that does not count: {text}"


def _signer(bundle: SignedBundle, candidate: str) -> str:
    """Returns who has signed, in words; the candidate is the key or the identity that fits."""
    from cryptography import x509  # noqa: PLC0415

    if bundle.kind != "certificate":
        return f"the key '{candidate}'" if bundle.kind == "key" else f"'{candidate}'"
    try:
        certificate = x509.load_der_x509_certificate(bundle.certificates[0])
    except (ValueError, IndexError):
        return "a certificate that cannot be read"
    subject, issuer = certificate.subject.rfc4514_string(), certificate.issuer.rfc4514_string()
    end = certificate.not_valid_after_utc.isoformat(timespec="seconds")
    return f"the certificate of '{subject}', issued by '{issuer}', valid until {end}"


def describe_differences(text: str) -> str:
    """Returns how a folder differs from its signature, which the package prints as a list."""
    try:
        found = [str(each) for each in ast.literal_eval(text)]
    except (ValueError, SyntaxError):
        return text
    more = len(found) - _MAX_LISTED
    shown = found[:_MAX_LISTED] + ([f"and {more} more"] if more > 0 else [])
    return "; ".join(_DIGEST.sub(_as_hexadecimal, each) for each in shown)


def _as_hexadecimal(match: re.Match[str]) -> str:
    return f"{match[1]}:{ast.literal_eval(match[2]).hex()}"


def _shortened(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()  # names of files may be no UTF-8
    if len(text) <= _MAX_REASON_CHARACTERS:
        return text
    return text[:_MAX_REASON_CHARACTERS] + "..."


def main() -> None:
    """Answer one question."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    with contextlib.redirect_stdout(sys.stderr):  # the package prints warnings
        answer = verify(question)
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.buffer.flush()
