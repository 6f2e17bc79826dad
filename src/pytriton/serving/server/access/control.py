# SPDX-License-Identifier: Apache-2.0
"""The policy of one process at work: who sends a request, and whether that may do what it asks.

`Authorization` asks it, for every request of every port. What was found out about a head stays true
until the policy changes or the credential expires; `is_current` tells that in 0.2 us.
"""

from __future__ import annotations

import fnmatch
import hashlib
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pytriton.base.lazy_module import LazyModule
from pytriton.serving.server.access.client_addresses import TrustedProxies
from pytriton.serving.server.access.credentials import (
    OWNER,
    PROBE,
    Authenticator,
    Credential,
    Identity,
    Peer,
    Unauthenticated,
    read_credential,
    read_peer,
)
from pytriton.serving.server.access.decisions import Client, Denial, HeaderLookup, Reason, Scope
from pytriton.serving.server.access.policy import EVERYTHING, HEALTH, Policy, Rights
from pytriton.serving.server.access.signature_budget import SignatureBudget
from pytriton.serving.server.access.throttle import MAX_ADDRESSES, Throttle, address_group

if TYPE_CHECKING:
    import asyncio

    from pytriton.serving.server.access import tokens
    from pytriton.serving.server.access.tokens import Tokens
else:  # only for policies with issuers: it needs PyJWT
    tokens = LazyModule("pytriton.serving.server.access.tokens")

logger = logging.getLogger(__name__)

MAX_KNOWN = 4096  # credentials that were found valid, and models of a principal
_SILENT_S = 60.0  # between two lines about the same failure of an address
_MAX_LINES = 1024  # addresses and failures that were logged
_SHOWN_CHARACTERS = 200  # of the name of a model
_UNAUTHENTICATED, _FORBIDDEN, _THROTTLED, _UNAVAILABLE = (401, 16), (403, 7), (429, 8), (503, 14)
# Nobody knows yet whether these credentials are wrong: they do not count for their addresses.
_UNDECIDED = {Reason.KEYS_UNAVAILABLE: _UNAVAILABLE, Reason.SIGNATURE_LIMIT: _THROTTLED}


class Principal:
    """The rights of a principal."""

    __slots__ = ("_apis", "_known", "_pattern", "name", "patterns", "sees_all")

    def __init__(self, name: str, rights: Rights) -> None:
        self.name = name
        self.sees_all = EVERYTHING in rights.models
        self._apis = frozenset(rights.apis)
        self.patterns = rights.models
        patterns = "|".join(fnmatch.translate(each) for each in rights.models)
        self._pattern = re.compile(patterns) if patterns else None
        self._known: dict[str, bool] = {}  # models, as matching takes 1 us

    def may_call(self, api: str) -> bool:
        return api in self._apis or EVERYTHING in self._apis

    def may_use(self, model: str) -> bool:
        """Returns whether its patterns name a model."""
        if self.sees_all:
            return True
        is_named = self._known.get(model)
        if is_named is None:
            is_named = self._pattern is not None and self._pattern.fullmatch(model) is not None
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[model] = is_named
        return is_named

    def __repr__(self) -> str:
        return f"<Principal {self.name}>"


class Grant:
    """A sender that is known, until the policy changes, or its credential expires."""

    __slots__ = ("_generation", "fingerprint", "principal", "until_s")

    def __init__(
        self, principal: Principal, until_s: float, generation: int, fingerprint: str | None
    ) -> None:
        self.principal = principal
        self.until_s = until_s
        self._generation = generation
        # Of the certificate that the sender is known by; None if another has the same rights.
        self.fingerprint = fingerprint

    @property
    def name(self) -> str:
        return self.principal.name

    def is_of(self, generation: int, now_s: float) -> bool:
        return self._generation == generation and now_s < self.until_s


class AccessControl:
    """Decides by the current policy, and counts and logs what it refuses.

    Args:
        policy: the first policy.
        own_key: of processes of the user who runs the server.
        clock: returns the seconds since the epoch.
        proxies: finds the clients behind proxies; None: there are none that are believed.
        signatures: says whether there is time for signatures of tokens.
    """

    def __init__(
        self,
        policy: Policy,
        own_key: str,
        clock: Callable[[], float] = time.time,
        proxies: TrustedProxies | None = None,
        signatures: SignatureBudget | None = None,
    ) -> None:
        self._own_key = own_key
        self._proxies = proxies
        self._signatures = SignatureBudget() if signatures is None else signatures
        # Where credentials came from that were accepted; the last ones are at its end.
        self._accepted_from: dict[str, None] = {}
        self._clock = clock
        self._generation = 0
        self.refusals: Counter[str] = Counter()  # by reason
        # Called after the policy has changed, so that nobody keeps what was true before.
        self.on_changed: list[Callable[[], None]] = []
        # Called with the address of each wrong credential, so that other processes count it, too.
        self.on_failure: Callable[[str], None] | None = None
        # Called with an issuer that has withdrawn keys, so that other processes fetch them, too.
        self.on_withdrawn: Callable[[str], None] | None = None
        self._tokens: Tokens | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lines: dict[tuple[str, str], tuple[float, int]] = {}
        self._use(policy)

    def use(self, policy: Policy) -> None:
        """Decide by another policy from now on."""
        self._use(policy)
        for tell in self.on_changed:
            tell()

    def _use(self, policy: Policy) -> None:
        self._generation += 1
        self._policy = policy
        former = self._tokens
        # Also without issuers: threads that ask those of the policy before are counted on.
        if policy.issuers or former is not None:
            self._tokens = tokens.Tokens(policy.issuers, former)
            self._tokens.on_withdrawn = self._on_withdrawn
        if former is not None:
            former.stop()
        if self._loop is not None and self._tokens is not None:
            self._tokens.start(self._loop)
        verifier = self._tokens if policy.issuers else None
        self._authenticator = Authenticator(policy, self._own_key, verifier)
        self._throttle = Throttle(policy.max_failures_per_minute)
        self._principals = {name: Principal(name, each) for name, each in policy.principals.items()}
        self._principals[OWNER] = Principal(OWNER, Rights(apis=(EVERYTHING,)))
        self._principals[PROBE] = Principal(PROBE, Rights(apis=(HEALTH,), models=()))
        self._known: dict[bytes, Grant] = {}  # by the hash of a credential

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fetch the keys of issuers, now and then."""
        self._loop = loop
        if self._tokens is not None:
            self._tokens.start(loop)

    def stop(self) -> None:
        """Fetch nothing more."""
        self._loop = None
        if self._tokens is not None:
            self._tokens.stop()
            self._tokens.fetches.cancel()

    def _on_withdrawn(self, issuer: str, is_told: bool) -> None:
        """Look again at who is known, as an issuer has withdrawn keys."""
        self._generation += 1
        for tell in self.on_changed:
            tell()
        if self.on_withdrawn is not None and not is_told:
            self.on_withdrawn(issuer)

    def fetch_keys(self, issuer: str) -> None:
        """Fetch the keys of an issuer; another process has found that some were withdrawn."""
        if self._tokens is not None:
            self._tokens.fetch_again(issuer)

    # Who it is

    def is_current(self, grant: Grant | None, client: Client) -> bool:
        """Returns whether what was found out about a head is true for this client, too."""
        if grant is None:  # it asks for what is open to all
            return True
        if not grant.is_of(self._generation, self._clock()):
            return False
        return grant.fingerprint is None or grant.fingerprint == _fingerprint(_peer(client))

    def identify(
        self, header: HeaderLookup, client: Client, *, is_counted: bool = True
    ) -> Grant | Denial:
        """Returns who sends a request; a refusal is counted and logged if it is the first look."""
        now_s = self._clock()
        credential = read_credential(header)
        if isinstance(credential, Unauthenticated):
            address = self._address(header, client)
            return self._fail(credential, address, now_s, is_counted=is_counted)
        if credential is not None:
            return self._identify_credential(
                credential, header, client, now_s, is_counted=is_counted
            )
        peer = _peer(client)
        found = self._authenticator.identify_connection(peer.certificate, now_s)
        if isinstance(found, Unauthenticated):
            address = self._address(header, client)
            return self._fail(found, address, now_s, is_counted=is_counted)
        fingerprint = _fingerprint(peer) if found.is_of_connection else None
        return self._grant(found, fingerprint)

    def _address(self, header: HeaderLookup, client: Client) -> str:
        """Returns the address of who sent a request; not needed for most of them."""
        address = _peer(client).address
        return address if self._proxies is None else self._proxies.client_of(address, header)

    def _identify_credential(
        self,
        credential: Credential,
        header: HeaderLookup,
        client: Client,
        now_s: float,
        *,
        is_counted: bool,
    ) -> Grant | Denial:
        digest = hashlib.sha256(credential.text.encode("latin-1")).digest()
        known = self._known.get(digest)
        if known is not None and known.is_of(self._generation, now_s):
            return known
        address = self._address(header, client)
        if not credential.is_own:
            wait_s = self._throttle.wait_s(address, now_s)
            if wait_s:
                return self._slow_down(wait_s, is_counted=is_counted)
        group = address_group(address)
        run_check = partial(self._signatures.run, group in self._accepted_from, now_s)
        found = self._authenticator.identify(credential, now_s, run_check)
        if isinstance(found, Unauthenticated):
            return self._fail(found, address, now_s, is_counted=is_counted)
        grant = self._grant(found, None)
        if not credential.is_own:  # a process could send any number of others in that header
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[digest] = grant
            self._accepted_from.pop(group, None)
            if len(self._accepted_from) >= MAX_ADDRESSES:
                del self._accepted_from[next(iter(self._accepted_from))]
            self._accepted_from[group] = None
        return grant

    def _grant(self, found: Identity, fingerprint: str | None) -> Grant:
        principal = self._principals[found.principal]
        return Grant(principal, found.until_s, self._generation, fingerprint)

    def _slow_down(self, wait_s: float, *, is_counted: bool) -> Denial:
        if is_counted:
            self.refusals[Reason.THROTTLED.value] += 1
        seconds = math.ceil(wait_s)
        message = (
            "too many wrong credentials came from this address: a new one is looked at in "
            f"{seconds} s"
        )
        return _later(Reason.THROTTLED, message, _THROTTLED, seconds)

    def _fail(
        self, failure: Unauthenticated, address: str, now_s: float, *, is_counted: bool
    ) -> Denial:
        reason = failure.reason
        if is_counted:
            self.refusals[reason.value] += 1
            self._log(address, failure, now_s)
            if reason not in _UNDECIDED and self._policy.max_failures_per_minute:
                self._throttle.on_failure(address, now_s)
                if self.on_failure is not None:
                    self.on_failure(address)
        if reason in _UNDECIDED:
            return _later(reason, failure.message, _UNDECIDED[reason], 1)
        return _unauthenticated(reason, failure.message)

    def count_failures(self, counts: Mapping[str, int]) -> None:
        """Count wrong credentials that came to other processes, by address."""
        now_s = self._clock()
        for address, count in counts.items():
            self._throttle.on_failure(address, now_s, count)

    @property
    def failure_counts(self) -> dict[str, int]:
        """The wrong credentials of all processes that count now, by address."""
        return self._throttle.counts(self._clock())

    def _log(self, address: str, failure: Unauthenticated, now_s: float) -> None:
        """Log a failure, unless one of its kind was logged a short time ago.

        Clients choose the ids of keys: another id is no reason for another line. Nor is another
        address, if many of them come together.
        """
        is_of_all = failure.reason is Reason.SIGNATURE_LIMIT
        key = ("" if is_of_all else address, failure.reason.value)
        logged_s, left_out = self._lines.get(key, (-math.inf, 0))
        if now_s - logged_s < _SILENT_S:
            self._lines[key] = (logged_s, left_out + 1)
            return
        if len(self._lines) >= _MAX_LINES:
            self._lines.clear()
        self._lines[key] = (now_s, 0)
        more = f" ({left_out} times more since the last line)" if left_out else ""
        logger.warning(
            "Refused a client at %s, %s: %s%s",
            *(address or "no address", failure.label or "a credential"),
            *(failure.reason.value, more),
        )

    # What it may do

    def refusal(
        self, grant: Grant, api: str, model: str | Scope, *, is_counted: bool = True
    ) -> Denial | None:
        """Returns why a sender may not do something; None if it may."""
        denial = self._denial(grant.principal, api, model)
        if denial is None:
            return None
        denial = denial._replace(grant=grant)
        return self.counted(denial) if is_counted else denial

    def counted(self, denial: Denial) -> Denial:
        """Count a refusal, which is returned."""
        self.refusals[denial.reason.value] += 1
        return denial

    def _denial(self, principal: Principal, api: str, model: str | Scope) -> Denial | None:
        name = principal.name
        if not principal.may_call(api):
            reason, message = Reason.FORBIDDEN_API, f"{name} has no right to {api}"
        elif isinstance(model, str):
            if principal.may_use(model):
                return None
            shown = ascii(model[:_SHOWN_CHARACTERS])
            reason = Reason.FORBIDDEN_MODEL
            message = f"{name} has no right to {api} of the model {shown}"
        elif model is Scope.BY_BODY and not principal.patterns:
            reason = Reason.FORBIDDEN_MODEL
            message = f"{name} has no right to {api} of any model"
        elif model is not Scope.ALL or principal.sees_all:
            return None
        else:
            reason = Reason.FORBIDDEN_MODEL
            message = f"{name} has a right to {api} of some models, and this is about all"
        if name == PROBE:
            message = f"this needs a key or a token with the right to {api}, got none"
            return _unauthenticated(Reason.MISSING, message)
        return Denial(reason, message, *_FORBIDDEN)

    def __repr__(self) -> str:
        return f"<AccessControl of {len(self._policy.principals)} principals>"


def _unauthenticated(reason: Reason, message: str) -> Denial:
    return Denial(reason, message, *_UNAUTHENTICATED, b"WWW-Authenticate: Bearer\r\n")


def _later(reason: Reason, message: str, statuses: tuple[int, int], seconds: int) -> Denial:
    line = b"Retry-After: %d\r\n" % seconds
    return Denial(reason, message, *statuses, line, retry_after_s=seconds)


def _peer(client: Client) -> Peer:
    peer: Peer | None = client.peer
    if peer is None:
        peer = client.peer = read_peer(client)
    return peer


def _fingerprint(peer: Peer) -> str:
    return "" if peer.certificate is None else peer.certificate.fingerprint
