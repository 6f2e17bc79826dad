# SPDX-License-Identifier: Apache-2.0
"""Tokens of issuers (JWT): verifies them, and fetches the keys of their issuers.

What costs little is looked at first: issuer, algorithm, audience, times and the id of the key. Only
then comes the signature, and only if it is right PyJWT decides on the whole token: it takes 0.1 ms
to read a small one, and 1 ms to read a large one, which nobody is to cause without a right
signature. Keys are fetched at the start, every few minutes, and soon after a token named a key
that is not known. If an issuer cannot be asked, its last keys stay. Each is asked in a thread of
its own, with one deadline for all that it answers, so that nobody waits for another issuer. This
module is imported by servers whose policy has issuers only.
"""

from __future__ import annotations

import asyncio
import base64
import fnmatch
import http.client
import io
import json
import logging
import socket
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jwt
import msgspec

from pytriton.base.background_tasks import BackgroundTasks, call_driver
from pytriton.serving.server.access.credentials import Identity, Unauthenticated
from pytriton.serving.server.access.decisions import Reason
from pytriton.serving.server.access.policy import ALGORITHMS, Issuer
from pytriton.serving.server.access.signature_budget import RunCheck

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

logger = logging.getLogger(__name__)

REFRESH_S = 300.0  # after this time, keys are fetched again
RETRY_S = 10.0  # at least, between two tries for a key that is not known, or after a failure
_LOOK_S = 0.2  # between two looks at whether it is time
_DEADLINE_S = 8.0  # for all that an issuer is asked at once, however it answers
_LEAVE_S = 1.0  # after that, nobody waits for the thread: the system may look for an address
_MAX_THREADS = 64
_MAX_BYTES = 1 << 20
_MAX_KEYS = 256  # of an issuer that is asked: to read one takes up to a millisecond
_DISCOVERY = "/.well-known/openid-configuration"
_SYMMETRIC = "oct"
_PRIVATE = "d"  # the member of a key that can sign
_OF_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# What an issuer that does not answer as it should is expected to cause.
_FETCH_ERRORS = (OSError, ValueError, http.client.HTTPException)

Fetch = Callable[[Issuer], str]


class _Header(msgspec.Struct):
    """What counts of the header of a token, whatever a sender has written."""

    alg: Any = None
    # A text (RFC 7515, section 4.1.4). Anything else may be nested deeper than Python can follow.
    kid: str | None = None


class _Claims(msgspec.Struct):
    """What counts of its claims before its signature."""

    iss: Any = None
    aud: Any = None
    exp: Any = None
    nbf: Any = None


class UnverifiedToken(NamedTuple):
    """The parts of a token; nothing of it is proved."""

    header: _Header
    claims: _Claims
    signed: bytes
    signature: bytes


_read_header = msgspec.json.Decoder(_Header).decode
_read_claims = msgspec.json.Decoder(_Claims).decode


def read_token(token: str) -> UnverifiedToken | None:
    """Returns the parts of a token; None if it cannot be read."""
    signed, _, signature = token.rpartition(".")
    header, _, claims = signed.partition(".")
    try:
        return UnverifiedToken(
            _read_header(_decoded(header)),
            _read_claims(_decoded(claims)),
            signed.encode("ascii"),
            _decoded(signature),
        )
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


Keys = dict[str, dict[str, jwt.PyJWK]]  # by id, then by algorithm


class _TimedReader(io.RawIOBase):
    """Reads from a socket until a time.

    Its own limit is for each part: an issuer could send one byte after the other.
    """

    def __init__(self, connected: socket.socket, until_s: float) -> None:
        self._socket = connected
        self._until_s = until_s
        self._raw = connected.makefile("rb", buffering=0)

    def makefile(self, _: str) -> io.BufferedReader:
        """Returns a file; it is what an answer asks a socket for."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        self._socket.settimeout(_left_s(self._until_s))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError(f"the answer took more than {_DEADLINE_S:g} s")
    return left_s


class _TimedAnswer(http.client.HTTPResponse):
    """An answer that is read until a time."""

    def __init__(
        self, until_s: float, connected: socket.socket, *settings: Any, **named: Any
    ) -> None:
        super().__init__(_TimedReader(connected, until_s), *settings, **named)  # type: ignore[arg-type]  # it takes a file of it, and nothing else


class _Timed(urllib.request.AbstractHTTPHandler):
    """Applies the time limit of a request to its whole answer."""

    def do_open(self, http_class: Any, req: Any, **http_conn_args: Any) -> Any:
        """Send a request; returns its answer."""

        def connect(host: str, timeout: float, **more: Any) -> Any:
            connection = http_class(host, timeout=timeout, **more)
            connection.response_class = partial(_TimedAnswer, time.monotonic() + timeout)
            return connection

        return super().do_open(connect, req, **http_conn_args)  # type: ignore[arg-type]  # it is called by these names


class _TimedHttp(_Timed, urllib.request.HTTPHandler):
    """For addresses with http."""


class _TimedHttps(_Timed, urllib.request.HTTPSHandler):
    """For addresses with https."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Keys come from the address that the policy allows, and from no other."""

    def redirect_request(self, *_: Any) -> None:
        """Do not follow; the answer is an error then."""


_opener = urllib.request.build_opener(_NoRedirect, _TimedHttp, _TimedHttps)


def fetch_keys(issuer: Issuer) -> str:
    """Returns the document with the keys of an issuer; called in a thread.

    Raises:
        OSError: The issuer does not answer in time.
        ValueError: It answers something else.
        http.client.HTTPException: What it answers is not HTTP, or not all of it comes.
    """
    until_s = time.monotonic() + _DEADLINE_S
    address = issuer.jwks_uri
    if not address:
        found = json.loads(_get(issuer.issuer.rstrip("/") + _DISCOVERY, until_s))
        if not isinstance(found, dict) or found.get("issuer") != issuer.issuer:
            raise ValueError(f"expected a document of the issuer {issuer.issuer}")
        address = str(found.get("jwks_uri", ""))
        # What a document names must not be less safe than the document.
        if not address.startswith("https://" if issuer.issuer.startswith("https:") else "http"):
            raise ValueError(f"expected a jwks_uri with https, got {address[:100]!a}")
    return _get(address, until_s)


def _get(address: str, until_s: float) -> str:
    request = urllib.request.Request(address, headers={"Accept": "application/json"})  # noqa: S310  the policy allows https, and http to this machine
    with _opener.open(request, timeout=_left_s(until_s)) as answer:
        body: bytes = answer.read(_MAX_BYTES + 1)
    if len(body) > _MAX_BYTES:
        raise ValueError(f"expected at most {_MAX_BYTES} bytes")
    return body.decode("utf-8")


def read_keys(document: str, most: int | None = None) -> Keys:
    """Returns the keys of a set by their ids; those that cannot verify signatures are left out.

    So are private keys: whoever fetches the set could sign with them.

    Raises:
        ValueError: It is no set of keys, or has more of them than `most`.
    """
    try:
        found = json.loads(document)
    except RecursionError:
        raise ValueError("expected a set of keys, got too many levels") from None
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise ValueError("expected a set of keys, an object with the list keys")  # noqa: TRY004  of a document
    if most is not None and len(listed) > most:
        raise ValueError(f"expected at most {most} keys, got {len(listed)}")
    keys: Keys = {}
    for each in listed:
        if not isinstance(each, dict) or each.get("kty") == _SYMMETRIC or _PRIVATE in each:
            continue
        if each.get("use", "sig") != "sig" or each.get("alg", ALGORITHMS[0]) not in ALGORITHMS:
            continue
        is_for_any = each.get("kty") == "RSA" and "alg" not in each
        try:
            found_keys = [jwt.PyJWK(each, name) for name in (_OF_RSA if is_for_any else (None,))]
        except (jwt.PyJWTError, ValueError, TypeError):  # of a kind that PyJWT does not know
            continue
        kid = each.get("kid", "")
        if not isinstance(kid, str | int):
            continue
        # A key for one algorithm verifies no other one.
        keys[str(kid)] = {key.algorithm_name: key for key in found_keys}
    return keys


class IssuerKeys:
    """The keys of one issuer."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.keys: Keys = read_keys(issuer.jwks) if issuer.jwks else {}
        self.tried_s = float("-inf")  # when they were fetched last, or it was tried
        self.has_failed = False
        self.is_wanted = False  # a token has named a key that is not there
        self.is_told = False  # another process has found that keys were withdrawn
        self.is_fetching = False

    @property
    def is_fetched(self) -> bool:
        return not self.issuer.jwks

    def is_due(self, now_s: float) -> bool:
        """Returns whether it is time to fetch them."""
        if not self.is_fetched or self.is_fetching:
            return False
        if self.is_told:
            return True
        is_urgent = self.is_wanted or self.has_failed or not self.keys
        return now_s - self.tried_s >= (RETRY_S if is_urgent else REFRESH_S)

    def take(self, keys: Keys) -> bool:
        """Use keys that were fetched; returns whether one of the last ones was withdrawn."""
        former, self.keys = self.keys, keys
        self.is_wanted = self.has_failed = False
        return any(
            name not in keys.get(kid, {}) or keys[kid][name].key != key.key
            for kid, by_algorithm in former.items()
            for name, key in by_algorithm.items()
        )


def _source(issuer: Issuer) -> tuple[str, str]:
    """Returns where the keys of an issuer come from."""
    return issuer.issuer, issuer.jwks_uri


class Fetches:
    """What issuers are asked now: each source of keys in one thread, also if the policy changes.

    Args:
        fetch: returns the document of an issuer's keys; called in a thread.
    """

    def __init__(self, fetch: Fetch = fetch_keys) -> None:
        self._fetch = fetch
        self._running: dict[tuple[str, str], asyncio.Future[Keys]] = {}

    def is_running(self, issuer: Issuer) -> bool:
        """Returns whether the source of an issuer's keys is being asked."""
        return _source(issuer) in self._running

    async def keys(self, issuer: Issuer) -> Keys:
        """Returns the keys of an issuer; raises what fetching them raises, and TimeoutError."""
        source = _source(issuer)
        running = self._running.get(source)
        if running is None:
            if len(self._running) >= _MAX_THREADS:
                raise TimeoutError(f"{_MAX_THREADS} issuers are being asked")
            running = asyncio.ensure_future(call_driver(partial(self._read, issuer)))
            self._running[source] = running
            running.add_done_callback(partial(self._on_done, source))
        done, _ = await asyncio.wait([running], timeout=_DEADLINE_S + _LEAVE_S)
        if not done:
            raise TimeoutError(f"no answer within {_DEADLINE_S:g} s")
        return running.result()

    def _read(self, issuer: Issuer) -> Keys:
        """In a thread, as many keys take long to read, too."""
        return read_keys(self._fetch(issuer), _MAX_KEYS)

    def _on_done(self, source: tuple[str, str], running: asyncio.Future[Keys]) -> None:
        del self._running[source]
        if not running.cancelled():
            running.exception()  # those who waited may have gone

    def cancel(self) -> None:
        """Wait for no answer any more."""
        for running in list(self._running.values()):
            running.cancel()


class Tokens:
    """Verifies the tokens of all issuers of a policy.

    Args:
        issuers: the issuers.
        former: of the policy before, whose keys are used until others were fetched.
        fetches: asks the issuers; None: that of the policy before, or a new one.
    """

    def __init__(
        self,
        issuers: Sequence[Issuer],
        former: Tokens | None = None,
        fetches: Fetches | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if fetches is None:
            fetches = Fetches() if former is None else former.fetches
        self.fetches: Fetches = fetches
        self._clock = clock
        self.issuers = [IssuerKeys(each) for each in issuers]
        known = {} if former is None else {_source(each.issuer): each for each in former.issuers}
        for each in self.issuers:
            if each.is_fetched and (same := known.get(_source(each.issuer))) is not None:
                each.keys, each.has_failed = same.keys, same.has_failed
                each.is_told = same.is_told
                # What is on its way was asked for the former policy: it is waited for now, too.
                if not fetches.is_running(each.issuer):
                    each.tried_s = same.tried_s
        self._tasks: BackgroundTasks | None = None
        # Called with an issuer that has withdrawn keys, and whether another process knows of it.
        self.on_withdrawn: Callable[[str, bool], None] | None = None

    # Keys

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fetch keys, now and when it is time."""
        self._tasks = BackgroundTasks(loop)
        if any(each.is_fetched for each in self.issuers):
            self._tasks.start(self._keep_fresh(self._tasks))

    def stop(self) -> None:
        """Wait for no keys any more; those of a next policy get what is on its way."""
        if self._tasks is not None:
            self._tasks.cancel()

    async def _keep_fresh(self, tasks: BackgroundTasks) -> None:
        while True:
            for keys in self.due():
                tasks.start(self.refresh(keys))
            await asyncio.sleep(_LOOK_S)

    def due(self) -> list[IssuerKeys]:
        """Returns the keys for which it is time."""
        now_s = self._clock()
        return [each for each in self.issuers if each.is_due(now_s)]

    async def refresh(self, keys: IssuerKeys) -> None:
        """Fetch the keys of an issuer; its last ones stay if that fails."""
        keys.tried_s, keys.is_fetching = self._clock(), True
        is_told, keys.is_told = keys.is_told, False
        try:
            is_withdrawn = keys.take(await self.fetches.keys(keys.issuer))
        except Exception as error:  # whatever it is, the next try must follow
            if not keys.has_failed:
                left = "its last ones stay" if keys.keys else "its tokens cannot be verified"
                logger.warning(
                    "The keys of %s cannot be fetched, %s: %s",
                    *(keys.issuer.issuer, left, ascii(str(error) or type(error).__name__)),
                    exc_info=None if isinstance(error, _FETCH_ERRORS) else error,
                )
            keys.has_failed = True
        else:
            if is_withdrawn and self.on_withdrawn is not None:
                self.on_withdrawn(keys.issuer.issuer, is_told)
        finally:
            keys.is_fetching = False

    def fetch_again(self, issuer: str) -> None:
        """Fetch the keys of an issuer, as another process has found that some were withdrawn."""
        for each in self.issuers:
            if each.issuer.issuer == issuer:
                each.is_told = True

    # Tokens

    def verify(self, token: str, now_s: float, run_check: RunCheck) -> Identity | Unauthenticated:
        """Returns who a token is of, or why it is not valid.

        `run_check` verifies a signature, unless that may not be done now.
        """
        read = read_token(token)
        if read is None:
            return Unauthenticated(Reason.MALFORMED, "the token cannot be read")
        candidates = [each for each in self.issuers if each.issuer.issuer == read.claims.iss]
        if not candidates:
            return Unauthenticated(Reason.FOREIGN, "the token is of an issuer that is not accepted")
        failure = None
        for keys in candidates:
            found = self._verify(token, read, keys, now_s, run_check)
            # Nobody has looked: it may be right for this one, whatever is wrong for another.
            if isinstance(found, Identity) or found.reason is Reason.SIGNATURE_LIMIT:
                return found
            failure = failure or found
        assert failure is not None
        return failure

    def _verify(
        self,
        token: str,
        read: UnverifiedToken,
        keys: IssuerKeys,
        now_s: float,
        run_check: RunCheck,
    ) -> Identity | Unauthenticated:
        issuer = keys.issuer
        label = f"a token of {issuer.issuer}"
        key = self._find_key(read, keys, label, now_s)
        if isinstance(key, Unauthenticated):
            return key
        is_right = run_check(lambda: _is_signed(read, key))
        if is_right is None:
            return Unauthenticated(
                Reason.SIGNATURE_LIMIT, "too many tokens with wrong signatures are coming", label
            )
        if not is_right:
            return Unauthenticated(Reason.BAD_SIGNATURE, "the token's signature is wrong", label)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=list(issuer.audience),
                issuer=issuer.issuer,
                options={
                    "require": ["exp", "iss", "aud"],
                    # By the clock that was given, below.
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            return _failure_of(error, label)
        return _check_claims(claims, issuer, label, now_s)

    def _find_key(
        self, read: UnverifiedToken, keys: IssuerKeys, label: str, now_s: float
    ) -> jwt.PyJWK | Unauthenticated:
        """Returns the key of a token, if all that costs little to look at is right.

        Whose the token is comes after its signature: that would tell strangers who has rights.
        """
        issuer, algorithm = keys.issuer, read.header.alg
        if algorithm not in issuer.algorithms:
            return Unauthenticated(
                Reason.ALGORITHM, "the token is signed by an algorithm that is not accepted", label
            )
        failure = _audience_failure(read.claims.aud, issuer, label)
        if failure is None:
            times = _read_times(read.claims.exp, read.claims.nbf, issuer, label, now_s)
            failure = times if isinstance(times, Unauthenticated) else None
        if failure is not None:
            return failure
        by_algorithm = self._key(keys, read.header.kid)
        if by_algorithm is None:
            return self._on_unknown_key(keys, label)
        key = by_algorithm.get(algorithm)
        if key is None:
            return Unauthenticated(
                Reason.ALGORITHM, "the token and its key have other algorithms", label
            )
        return key

    def _key(self, keys: IssuerKeys, kid: str | None) -> dict[str, jwt.PyJWK] | None:
        if kid is None:  # allowed if there is no choice
            return next(iter(keys.keys.values())) if len(keys.keys) == 1 else None
        return keys.keys.get(kid)

    def _on_unknown_key(self, keys: IssuerKeys, label: str) -> Unauthenticated:
        now_s = self._clock()
        is_soon = keys.is_fetched and (
            not keys.keys or keys.is_wanted or now_s - keys.tried_s >= RETRY_S
        )
        if is_soon:
            keys.is_wanted = True
            return Unauthenticated(
                Reason.KEYS_UNAVAILABLE, "the keys of the token's issuer are being fetched", label
            )
        return Unauthenticated(
            Reason.BAD_SIGNATURE, "the token is signed by a key that is not known", label
        )


def _is_signed(read: UnverifiedToken, key: jwt.PyJWK) -> bool:
    """Returns whether the signature of a token is right."""
    algorithm = key.Algorithm
    try:
        prepared = algorithm.prepare_key(key.key)
        return bool(algorithm.verify(read.signed, prepared, read.signature))
    except (jwt.PyJWTError, ValueError, TypeError):  # of a key that is not for this algorithm
        return False


def _audience_failure(audience: Any, issuer: Issuer, label: str) -> Unauthenticated | None:
    """Returns what is wrong with whom a token is for."""
    if audience is None:
        return Unauthenticated(Reason.MALFORMED, "the token has no audience", label)
    listed = audience if isinstance(audience, list) else [audience]
    if any(each in issuer.audience for each in listed):
        return None
    return Unauthenticated(Reason.FOREIGN, "the token is for another audience", label)


def _read_times(
    expires: Any, begins: Any, issuer: Issuer, label: str, now_s: float
) -> float | Unauthenticated:
    """Returns until when a token is valid, if it is now."""
    skew_s = issuer.clock_skew_s
    try:
        until_s = float(expires) + skew_s
        from_s = float(now_s if begins is None else begins) - skew_s
    except (TypeError, ValueError, OverflowError):
        return Unauthenticated(Reason.MALFORMED, "the token's times are no numbers", label)
    if not now_s < until_s < float("inf"):
        return Unauthenticated(Reason.EXPIRED, "the token has expired", label)
    if not now_s >= from_s:
        return Unauthenticated(Reason.NOT_YET_VALID, "the token is not valid yet", label)
    return until_s


def _check_claims(
    claims: Mapping[str, Any], issuer: Issuer, label: str, now_s: float
) -> Identity | Unauthenticated:
    """Returns who a token with a right signature is of, if it is valid now."""
    until_s = _read_times(claims["exp"], claims.get("nbf"), issuer, label, now_s)
    if isinstance(until_s, Unauthenticated):
        return until_s
    subject = claims.get(issuer.claim)
    if isinstance(subject, str):
        for pattern, principal in issuer.principals:
            if fnmatch.fnmatchcase(subject, pattern):
                return Identity(principal, until_s)
    return Unauthenticated(Reason.UNKNOWN_SUBJECT, "the token is of nobody who has rights", label)


def _failure_of(error: Exception, label: str) -> Unauthenticated:
    if isinstance(error, jwt.InvalidSignatureError):
        return Unauthenticated(Reason.BAD_SIGNATURE, "the token's signature is wrong", label)
    if isinstance(error, jwt.InvalidAudienceError | jwt.InvalidIssuerError):
        return Unauthenticated(Reason.FOREIGN, "the token is for another audience", label)
    if isinstance(error, jwt.InvalidAlgorithmError | jwt.InvalidKeyError):
        return Unauthenticated(
            Reason.ALGORITHM, "the token and its key have other algorithms", label
        )
    return Unauthenticated(Reason.MALFORMED, "the token cannot be verified", label)
