# SPDX-License-Identifier: Apache-2.0
"""The policy of a server: who may do what. Reads its documents, and checks them; no I/O.

The records travel to front ends in processes of their own. They have no secrets: a key is there as
a hash. Errors name the file, the member, what was expected and what came.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from pytriton.base.quotas import PrincipalQuotas, Quota
from pytriton.base.request_words import nearest_name
from pytriton.base.security import VALID_TRITON_ENDPOINTS
from pytriton.serving.server.access.keys import KeyRecord

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

METRICS, PAGE, RECORDING, HEALTH = "metrics", "page", "recording", "health"
EVERYTHING = "*"
# The groups of requests that a principal may have a right to: Triton's, and ours.
APIS = frozenset({*VALID_TRITON_ENDPOINTS, METRICS, PAGE, RECORDING})
# Only algorithms whose keys for verifying cannot sign: whoever fetches the keys of an issuer could
# make tokens of the others ("none", and HS256 with a public key as its secret).
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
DEFAULT_ALGORITHMS = ("RS256", "ES256")
DEFAULT_MAX_FAILURES = 10

# OpenSSL's names of the attributes of a subject, by their short ones (RFC 4514, section 3).
ATTRIBUTES = {
    "CN": "commonName",
    "O": "organizationName",
    "OU": "organizationalUnitName",
    "C": "countryName",
    "ST": "stateOrProvinceName",
    "L": "localityName",
    "STREET": "streetAddress",
    "DC": "domainComponent",
    "UID": "userId",
    "EMAILADDRESS": "emailAddress",
    "SERIALNUMBER": "serialNumber",
}
_SHORT_NAMES = {long.upper(): short for short, long in ATTRIBUTES.items()}
_SUBJECT_FORM = "attributes such as CN=client-a, O=Example"
_OBJECT_ID = re.compile(r"\d+(\.\d+)+")  # OpenSSL shows attributes so that it has no name for

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")
_FINGERPRINT = re.compile(r"sha256:((?:[0-9a-fA-F]{2}:?){32})")
_LOCAL_ADDRESS = re.compile(r"http://(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?(/\S*)?")
_SECURE_ADDRESS = re.compile(r"https://[^\s/]+(/\S*)?")


class PolicyError(ValueError):
    """A document that is no policy."""


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """What a principal may use."""

    apis: tuple[str, ...] = ()  # of `APIS`, or `EVERYTHING`
    models: tuple[str, ...] = (EVERYTHING,)  # patterns of fnmatch


class Issuer(msgspec.Struct, frozen=True, kw_only=True):
    """An issuer of tokens (OpenID Connect), and the principals of its subjects."""

    issuer: str
    audience: tuple[str, ...]
    principals: tuple[tuple[str, str], ...]  # patterns of the claim with principals, in order
    jwks_uri: str = ""  # empty: the issuer's discovery document says it
    jwks: str = ""  # the keys themselves, if they come from a file
    algorithms: tuple[str, ...] = DEFAULT_ALGORITHMS
    clock_skew_s: float = 60.0
    claim: str = "sub"


class CertificateRule(msgspec.Struct, frozen=True, kw_only=True):
    """Certificates of clients and their principal; what is empty is not asked for."""

    principal: str
    subject: tuple[tuple[str, str], ...] = ()  # attributes by their short names, such as CN
    dns: str = ""
    fingerprint: str = ""  # of SHA-256, as small hexadecimal digits


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Who may do what."""

    principals: dict[str, Rights] = {}
    anonymous: str = ""  # of requests without a credential; empty: they are refused
    quotas: dict[str, PrincipalQuotas] = {}  # of all principals
    keys: dict[str, KeyRecord] = {}  # by id
    issuers: tuple[Issuer, ...] = ()
    certificates: tuple[CertificateRule, ...] = ()
    max_failures_per_minute: int = DEFAULT_MAX_FAILURES  # of an address; 0: any number


class PolicyDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A policy before the files that it names were read."""

    policy: Policy
    keys_file: str = ""  # empty: beside the policy
    jwks_files: tuple[str, ...] = ()  # of the issuers, in their order; empty: it has none


def parse_policy(text: str, place: str, *, is_json: bool) -> PolicyDocument:
    """Read a policy.

    Args:
        text: the document.
        place: the name of its file, for errors.
        is_json: whether it is JSON, or TOML.

    Raises:
        PolicyError: It is no policy.
    """
    try:
        document = json.loads(text) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{place} is no {'JSON' if is_json else 'TOML'}: {error}") from None
    if not document:  # a file that was cut off is no wish to lock everybody out
        raise PolicyError(f"{place} has no policy: expected the table principals, got nothing")
    root = _Members(document, place, "")
    rights, quotas = _principals(root)
    known = frozenset(rights)
    issuers = [_issuer(each, known) for each in root.tables("oidc")]
    certificates = [_certificate(each, known) for each in root.tables("certificates")]
    anonymous = root.text("anonymous", "")
    if anonymous:
        _check_principal(root, "anonymous", anonymous, known)
    policy = Policy(
        principals=rights,
        anonymous=anonymous,
        quotas=quotas,
        issuers=tuple(issuer for issuer, _ in issuers),
        certificates=tuple(certificates),
        max_failures_per_minute=root.whole("max_failures_per_minute", DEFAULT_MAX_FAILURES),
    )
    keys_file = root.text("keys_file", "")
    root.refuse_unread()
    return PolicyDocument(
        policy=policy, keys_file=keys_file, jwks_files=tuple(file for _, file in issuers)
    )


def _principals(root: _Members) -> tuple[dict[str, Rights], dict[str, PrincipalQuotas]]:
    rights, quotas = {}, {}
    for name, members in root.named_tables("principals").items():
        if not _NAME.fullmatch(name):
            raise members.wrong(
                "", "a name of letters, digits and . _ @ + -, up to 128 of them", name
            )
        rights[name] = Rights(
            apis=members.texts("apis", check=_check_api),
            models=members.texts("models", (EVERYTHING,)),
        )
        weight = members.number("weight", 1.0)
        if weight <= 0:
            raise members.wrong("weight", "a number above 0", weight)
        limits = tuple(map(_quota, members.tables("quotas")))
        quotas[name] = PrincipalQuotas(weight=weight, quotas=limits)
        members.refuse_unread()
    return rights, quotas


def _check_api(api: str) -> str:
    if api == EVERYTHING or api in APIS:
        return ""
    near = nearest_name(api, APIS)
    hint = f"; did you mean {near}?" if near else ""
    return f"names of {', '.join(sorted(APIS))} or {EVERYTHING}{hint}"


def _quota(members: _Members) -> Quota:
    given: dict[str, Any] = {"models": members.texts("models", (EVERYTHING,))}
    for name in ("requests_per_s", "burst", "tokens_per_s", "bytes_per_s"):
        given[name] = members.number(name, None)
        if given[name] is not None and given[name] <= 0:
            raise members.wrong(name, "a number above 0", given[name])
    given["concurrent"] = members.whole("concurrent", None, least=1)
    members.refuse_unread()
    if given["burst"] is not None and given["burst"] < 1:
        raise members.wrong("burst", "a number from 1 on", given["burst"])
    if given["burst"] is not None and given["requests_per_s"] is None:
        raise members.wrong("requests_per_s", "a number beside burst", "none")
    return Quota(**given)


def _issuer(members: _Members, known: frozenset[str]) -> tuple[Issuer, str]:
    issuer = members.text("issuer")
    uri, file = members.text("jwks_uri", ""), members.text("jwks_file", "")
    if uri and file:
        raise members.wrong("jwks_file", "either jwks_uri or jwks_file", "both")
    # The keys of an issuer decide on who is let in: they must not come from just anybody.
    if not file:
        for name, address in (("issuer", issuer), ("jwks_uri", uri or issuer)):
            if not (_SECURE_ADDRESS.fullmatch(address) or _LOCAL_ADDRESS.fullmatch(address)):
                raise members.wrong(name, "an address with https", address)
    skew_s = members.number("clock_skew_s", 60.0)
    if not 0 <= skew_s <= 600:
        raise members.wrong("clock_skew_s", "seconds from 0 to 600", skew_s)
    record = Issuer(
        issuer=issuer,
        audience=members.text_or_texts("audience"),
        principals=_subjects(members, known),
        jwks_uri=uri,
        algorithms=members.texts("algorithms", DEFAULT_ALGORITHMS, check=_check_algorithm),
        clock_skew_s=skew_s,
        claim=members.text("claim", "sub"),
    )
    members.refuse_unread()
    return record, file


def _check_algorithm(algorithm: str) -> str:
    if algorithm in ALGORITHMS:
        return ""
    return f"algorithms with a public key: {', '.join(ALGORITHMS)}"


def _subjects(members: _Members, known: frozenset[str]) -> tuple[tuple[str, str], ...]:
    subjects = members.table("principals")
    pairs = tuple((pattern, subjects.text(pattern)) for pattern in subjects.names)
    if not pairs:
        raise members.wrong("principals", "subjects with their principals", "none")
    for pattern, principal in pairs:
        _check_principal(subjects, pattern, principal, known)
    return pairs


def _certificate(members: _Members, known: frozenset[str]) -> CertificateRule:
    principal = members.text("principal")
    _check_principal(members, "principal", principal, known)
    subject, dns = members.text("subject", ""), members.text("dns", "")
    fingerprint = members.text("fingerprint", "")
    if not (subject or dns or fingerprint):
        raise members.wrong("", "subject, dns or fingerprint", "none of them")
    digits = ""
    if fingerprint:
        found = _FINGERPRINT.fullmatch(fingerprint)
        if found is None:
            raise members.wrong("fingerprint", "sha256: and 64 hexadecimal digits", fingerprint)
        digits = found[1].replace(":", "").lower()
    rule = CertificateRule(
        principal=principal,
        subject=_attributes(members, subject),
        dns=dns.lower(),
        fingerprint=digits,
    )
    members.refuse_unread()
    return rule


def _attributes(members: _Members, subject: str) -> tuple[tuple[str, str], ...]:
    """Returns the attributes in a text such as `CN=client-a, O=Example`."""
    pairs = []
    for part in filter(None, map(str.strip, subject.split(","))):
        name, equals, value = map(str.strip, part.partition("="))
        if not (name and equals and value):
            raise members.wrong("subject", _SUBJECT_FORM, subject)
        known = _SHORT_NAMES.get(name.upper(), name.upper())
        if known not in ATTRIBUTES and not _OBJECT_ID.fullmatch(known):
            raise members.wrong("subject", f"attributes of {', '.join(ATTRIBUTES)}", name)
        pairs.append((known, value))
    if subject and not pairs:  # a rule that asks for nothing would mean every certificate
        raise members.wrong("subject", _SUBJECT_FORM, subject)
    return tuple(pairs)


def _check_principal(members: _Members, member: str, principal: str, known: frozenset[str]) -> None:
    if principal not in known:
        near = nearest_name(principal, known)
        hint = f"; did you mean {near}?" if near else ""
        raise members.wrong(member, f"a name of the table principals{hint}", principal)


class _Members:
    """The members of a table, each of which is read by its type once."""

    def __init__(self, table: Any, place: str, path: str) -> None:
        self._place = place
        self._path = path
        if not isinstance(table, Mapping):
            raise self.wrong("", "a table", table)
        self._table = table
        self._read: set[str] = set()

    @property
    def names(self) -> list[str]:
        return list(self._table)

    def wrong(self, member: str, expected: str, came: object) -> PolicyError:
        """Returns the error about a member, or about the whole table."""
        path = ".".join(filter(None, (self._path, member))) or "the document"
        shown = came if isinstance(came, str) and came in ("none", "both", "none of them") else None
        text = shown or ascii(came)
        if len(text) > 200:
            text = f"{text[:200]}…"
        return PolicyError(f"{self._place}: {path}: expected {expected}, got {text}")

    def _take(self, member: str, default: T, check: Callable[[Any], bool], expected: str) -> Any:
        self._read.add(member)
        if member not in self._table:
            if default is _NEEDED:
                raise self.wrong(member, expected, "none")
            return default
        value = self._table[member]
        if not check(value):
            raise self.wrong(member, expected, value)
        return value

    def text(self, member: str, default: Any = ...) -> str:
        return str(self._take(member, default, _is_text, "a text"))

    def number(self, member: str, default: Any = ...) -> Any:
        value = self._take(member, default, _is_number, "a number")
        return value if value is None else float(value)

    def whole(self, member: str, default: Any = ..., *, least: int = 0) -> Any:
        expected = f"a whole number from {least}"
        return self._take(member, default, lambda each: _is_whole(each, least), expected)

    def texts(
        self, member: str, default: Any = ..., check: Callable[[str], str] = lambda _: ""
    ) -> tuple[str, ...]:
        """Returns a list of texts; `check` returns what was expected instead of a wrong one."""
        given = self._take(member, default, _is_list_of_texts, "a list of texts")
        for text in given:
            if expected := check(text):
                raise self.wrong(member, expected, text)
        return tuple(given)

    def text_or_texts(self, member: str) -> tuple[str, ...]:
        given = self._take(
            member, _NEEDED, lambda each: _is_text(each) or _is_list_of_texts(each), "a text"
        )
        found = (given,) if isinstance(given, str) else tuple(given)
        if not found:
            raise self.wrong(member, "a text", given)
        return found

    def table(self, member: str) -> _Members:
        value = self._take(member, _NEEDED, lambda each: isinstance(each, Mapping), "a table")
        return _Members(value, self._place, self._joined(member))

    def named_tables(self, member: str) -> dict[str, _Members]:
        value = self._take(member, {}, lambda each: isinstance(each, Mapping), "tables")
        path = self._joined(member)
        return {name: _Members(each, self._place, f"{path}.{name}") for name, each in value.items()}

    def tables(self, member: str) -> Iterable[_Members]:
        value = self._take(member, [], lambda each: isinstance(each, list), "a list of tables")
        path = self._joined(member)
        return [_Members(each, self._place, f"{path}[{index}]") for index, each in enumerate(value)]

    def _joined(self, member: str) -> str:
        return ".".join(filter(None, (self._path, member)))

    def refuse_unread(self) -> None:
        """Refuse members that nobody has asked for: most of them are typing mistakes."""
        for name in self._table:
            if name not in self._read:
                near = nearest_name(name, self._read)
                hint = f"; did you mean {near}?" if near else ""
                known = ", ".join(sorted(self._read))
                raise self.wrong("", f"members of {known}{hint}", name)


_NEEDED = ...
_TOO_LARGE = 1 << 63  # for the records that travel to front ends


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:  # of a whole number with hundreds of digits
        return False


def _is_whole(value: object, least: int) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and least <= value < _TOO_LARGE  # type: ignore[operator]  # it is a number


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))
