# SPDX-License-Identifier: Apache-2.0
"""Keys of clients: how they are made, what is stored of them, and the document they are kept in.

A key is `ptk_<id>_<secret>`. The id is no secret: it finds the record, and names the key in logs.
The secret has 256 random bits, so its SHA-256 suffices: what makes slow hashes necessary is that
people choose passwords that can be guessed, and nobody tries 2^256 secrets. Nothing can be looked
up by a part of the secret, and hashes are compared in constant time.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import json
import math
import re
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

PREFIX = "ptk_"
_ID_BYTES = 6
_SECRET_BYTES = 32
_FORM = re.compile(r"ptk_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_ID = re.compile(r"[0-9a-f]{12}")
_HASH = re.compile(r"[0-9a-f]{64}")
_MEMBERS = ("id", "sha256", "principal", "created", "expires", "revoked", "note")
# Compared if no record has the id, so that the time does not tell which ids there are.
_NO_HASH = hashlib.sha256(b"").hexdigest()


class KeysError(ValueError):
    """A document that has no keys."""


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a key."""

    id: str
    sha256: str  # of the secret, as hexadecimal digits
    principal: str
    created_s: float = 0.0  # since the epoch
    expires_s: float | None = None
    revoked_s: float | None = None
    note: str = ""

    @property
    def until_s(self) -> float:
        """When it stops to be valid, unless it is revoked before."""
        return math.inf if self.expires_s is None else self.expires_s


def make_key(
    principal: str, now_s: float, expires_s: float | None = None, note: str = ""
) -> tuple[str, KeyRecord]:
    """Returns a new key, and what is stored of it."""
    key_id = secrets.token_hex(_ID_BYTES)
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    record = KeyRecord(
        id=key_id,
        sha256=_hash(secret),
        principal=principal,
        created_s=float(int(now_s)),
        expires_s=expires_s,
        note=note,
    )
    return f"{PREFIX}{key_id}_{secret}", record


def split_key(key: str) -> tuple[str, str] | None:
    """Returns the id and the secret of a key; None if it is none, or not a whole one."""
    found = _FORM.fullmatch(key)
    return None if found is None else (found[1], found[2])


def has_secret(record: KeyRecord | None, secret: str) -> bool:
    """Returns whether a secret is that of a record; without one, it takes as long."""
    expected = _NO_HASH if record is None else record.sha256
    is_equal = hmac.compare_digest(_hash(secret), expected)
    return is_equal and record is not None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


# The document


def parse_keys(text: str, place: str) -> dict[str, KeyRecord]:
    """Returns the keys of a document by id.

    Raises:
        KeysError: It is not such a document; the message does not quote it.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KeysError(f"{place} is no JSON: {error}") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise KeysError(f"{place}: expected an object with the list keys")
    records: dict[str, KeyRecord] = {}
    for index, members in enumerate(listed):
        record = _record(members, f"{place}: keys[{index}]")
        if record.id in records:
            raise KeysError(f"{place}: keys[{index}].id: two keys have the id {record.id}")
        records[record.id] = record
    return records


def _record(members: Any, place: str) -> KeyRecord:
    if not isinstance(members, dict):
        raise KeysError(f"{place}: expected an object")
    for name in members:
        if name not in _MEMBERS:
            raise KeysError(f"{place}: expected {', '.join(_MEMBERS)}, got {name!a}")
    texts = {name: members.get(name, "") for name in _MEMBERS}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise KeysError(f"{place}.{name}: expected a text")
    if not _ID.fullmatch(texts["id"]):
        raise KeysError(f"{place}.id: expected 12 hexadecimal digits")
    if not _HASH.fullmatch(texts["sha256"]):
        raise KeysError(f"{place}.sha256: expected 64 hexadecimal digits")
    if not texts["principal"]:
        raise KeysError(f"{place}.principal: expected the name of a principal")
    return KeyRecord(
        id=texts["id"],
        sha256=texts["sha256"],
        principal=texts["principal"],
        created_s=_seconds(texts["created"], f"{place}.created") or 0.0,
        expires_s=_seconds(texts["expires"], f"{place}.expires"),
        revoked_s=_seconds(texts["revoked"], f"{place}.revoked"),
        note=texts["note"],
    )


def _seconds(text: str, place: str) -> float | None:
    if not text:
        return None
    try:
        moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise KeysError(
            f"{place}: expected a time such as 2026-12-31T00:00:00Z, got {text[:40]!a}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.timezone.utc)
    return moment.timestamp()


def time_text(moment_s: float | None) -> str:
    """Returns a moment as documents and lists show it; empty for none."""
    if moment_s is None:
        return ""
    moment = dt.datetime.fromtimestamp(moment_s, dt.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def keys_text(records: Iterable[KeyRecord]) -> str:
    """Returns the document with these keys."""
    listed = []
    for record in records:
        members = {
            "id": record.id,
            "sha256": record.sha256,
            "principal": record.principal,
            "created": time_text(record.created_s),
            "expires": time_text(record.expires_s),
            "revoked": time_text(record.revoked_s),
            "note": record.note,
        }
        listed.append({name: value for name, value in members.items() if value})
    return json.dumps({"keys": listed}, indent=2) + "\n"
