# SPDX-License-Identifier: Apache-2.0
"""Policies for tests, with keys and tokens of every kind, good and bad."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from pytriton.serving.server.access.keys import KeyRecord, keys_text, make_key

ISSUER, AUDIENCE = "https://accounts.example.com", "pytriton"


class TokenMaker:
    """An issuer of tokens, with one key for each of its ids."""

    def __init__(self, issuer: str = ISSUER) -> None:
        self.issuer = issuer
        self.keys: dict[str, Any] = {}
        self.add("k1")

    def add(self, kid: str, *, is_rsa: bool = True) -> None:
        self.keys[kid] = (
            rsa.generate_private_key(65537, 2048)
            if is_rsa
            else ec.generate_private_key(ec.SECP256R1())
        )

    def jwks(self) -> str:
        return json.dumps({"keys": [self.jwk(kid) for kid in self.keys]})

    def jwk(self, kid: str) -> dict[str, Any]:
        key = self.keys[kid]
        kind = jwt.algorithms.RSAAlgorithm
        if isinstance(key, ec.EllipticCurvePrivateKey):
            kind = jwt.algorithms.ECAlgorithm
        return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "use": "sig"}

    def token(self, subject: str = "alice@example.com", kid: str = "k1", **changes: Any) -> str:
        """A token; changes whose value is None leave a claim out."""
        key = self.keys[kid]
        is_rsa = isinstance(key, rsa.RSAPrivateKey)
        algorithm = changes.pop("algorithm", "RS256" if is_rsa else "ES256")
        return jwt.encode(self.claims(subject, **changes), key, algorithm, headers={"kid": kid})

    def claims(self, subject: str, **changes: Any) -> dict[str, Any]:
        claims = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": subject,
            "exp": int(time.time()) + 3600,
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def unsigned(self, subject: str = "alice@example.com") -> str:
        return jwt.encode(self.claims(subject), None, "none")

    def signed_with_public_key(self, subject: str = "alice@example.com", kid: str = "k1") -> str:
        """What a server accepts that takes the algorithm from the token."""
        public = self.keys[kid].public_key()
        pem = public.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        # PyJWT refuses to do that, so it is done by hand.
        parts = [{"alg": "HS256", "typ": "JWT", "kid": kid}, self.claims(subject)]
        text = ".".join(
            jwt.utils.base64url_encode(json.dumps(part).encode()).decode() for part in parts
        )
        algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
        signature = algorithm.sign(text.encode(), pem)
        return f"{text}.{jwt.utils.base64url_encode(signature).decode()}"


class PolicyFolder:
    """A policy in a folder, with keys."""

    def __init__(self, folder: pathlib.Path, text: str) -> None:
        self.path = folder / "auth.toml"
        self.keys_file = folder / "auth.keys.json"
        self.records: dict[str, KeyRecord] = {}
        self.write(text)

    def write(self, text: str) -> None:
        replacement = self.path.with_suffix(".new")
        replacement.write_text(text)
        replacement.replace(self.path)

    def key(self, principal: str, *, is_revoked: bool = False, expires_s: float | None = None):
        """Add a key; returns it."""
        key, record = make_key(principal, time.time(), expires_s)
        if is_revoked:
            record = msgspec.structs.replace(record, revoked_s=time.time())
        self.records[record.id] = record
        self._write_keys()
        return key

    def keys(self, principal: str, count: int) -> list[str]:
        """Add many keys at once."""
        made = [make_key(principal, time.time()) for _ in range(count)]
        self.records.update((record.id, record) for _, record in made)
        self._write_keys()
        return [key for key, _ in made]

    def revoke(self, key: str) -> None:
        key_id = key.split("_")[1]
        self.records[key_id] = msgspec.structs.replace(self.records[key_id], revoked_s=time.time())
        self._write_keys()

    def _write_keys(self) -> None:
        replacement = self.keys_file.with_suffix(".new")
        replacement.write_text(keys_text(self.records.values()))
        replacement.replace(self.keys_file)


def wrong_credentials(folder: PolicyFolder, issuer: TokenMaker) -> dict[str, Mapping[str, str]]:
    """Headers with credentials that nobody may be let in by, by what is wrong with them."""
    good = folder.key("everything")
    foreign, _ = make_key("everything", time.time())  # of another server
    token = issuer.token("admin@example.com")
    stranger = TokenMaker()  # whose keys nobody knows
    keys = {
        "other secret": good[:-4] + ("AAAA" if not good.endswith("AAAA") else "BBBB"),
        "foreign key": foreign,
        "truncated key": good[:-1],
        "longer key": good + "A",
        "key without its prefix": good.removeprefix("ptk_"),
        "id alone": "_".join(good.split("_")[:2]),
        "revoked key": folder.key("everything", is_revoked=True),
        "expired key": folder.key("everything", expires_s=time.time() - 10),
        "key of nobody": folder.key("gone"),
        "truncated token": token[:-5],
        "token without signature": token.rpartition(".")[0] + ".",
        "expired token": issuer.token("admin@example.com", exp=int(time.time()) - 7200),
        "token of the future": issuer.token("admin@example.com", nbf=int(time.time()) + 7200),
        "token of another issuer": TokenMaker("https://other.example.com").token(),
        "token of a stranger": stranger.token("admin@example.com"),
        "token for others": issuer.token("admin@example.com", aud="other"),
        "token without a time": issuer.token("admin@example.com", exp=None),
        "token of nobody": issuer.token("mallory@elsewhere.com"),
        "token of none": issuer.unsigned("admin@example.com"),
        "token by a public key": issuer.signed_with_public_key("admin@example.com"),
    }
    headers: dict[str, Mapping[str, str]] = {}
    for what, value in keys.items():
        headers[f"{what} as bearer"] = {"authorization": f"Bearer {value}"}
        headers[f"{what} as x-api-key"] = {"x-api-key": value}
    headers["basic"] = {"authorization": "Basic YWRtaW46YWRtaW4="}
    headers["empty bearer"] = {"authorization": "Bearer "}
    headers["empty key"] = {"x-api-key": ""}
    headers["two keys"] = {"authorization": f"Bearer {good}", "x-api-key": foreign}
    headers["two keys in one"] = {"x-api-key": f"{good}, {foreign}"}
    headers["wrong own key"] = {"pytriton-own-key": "A" * 43}
    headers["empty own key"] = {"pytriton-own-key": ""}
    return headers
