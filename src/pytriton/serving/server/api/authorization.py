# SPDX-License-Identifier: Apache-2.0
"""Decides, for all ports, whether a request may do what it asks for.

Without a policy, that is whether it has the header of a restricted API. With one (`access`), its
sender also has to be known, and to have the right to the API and to the model.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.security import TRITON_ACCESS_HEADER, VALID_TRITON_ENDPOINTS
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.server.access.decisions import OWN_KEY_HEADER, Denial, Reason, Scope
from pytriton.serving.server.api.status import GRPC_RESTRICTED, HTTP_RESTRICTED

if TYPE_CHECKING:
    from pytriton.serving.server.access.control import AccessControl, Grant
    from pytriton.serving.server.access.decisions import Client, HeaderLookup

RECORDING = "recording"  # the API that gives away what clients send: it always needs a token
_CLOSED = (
    "recordings need an access token, and this server has none: start it with --page-token=<token> "
    "or restrict an API with one"
)


class RestrictedProtocol(enum.Enum):
    """The words of a protocol for restrictions: its flag, its noun twice, its header prefix."""

    HTTP = ("http-restricted-api", "api", "API", "")
    GRPC = ("grpc-restricted-protocol", "protocol", "protocol", "triton-grpc-protocol-")


class RestrictedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """APIs that answer only requests with a certain header."""

    apis: tuple[str, ...]
    header: str
    value: str  # a secret: it must appear in no log

    def __repr__(self) -> str:
        return f"RestrictedGroup(apis={self.apis!r}, header={self.header!r}, value=<hidden>)"


def parse_restricted_groups(
    specifications: Iterable[str], protocol: RestrictedProtocol
) -> tuple[RestrictedGroup, ...]:
    """Read the flags that restrict APIs: `<api>[,<api>...]:<header>=<value>` for each group.

    Raises:
        PyTritonValidationError: for a wrong syntax, an unknown API, or an API in two groups.
    """
    flag, noun, _, _ = protocol.value
    groups = []
    seen: set[str] = set()
    for specification in specifications:
        apis, _, setting = specification.partition(":")
        header, _, value = setting.partition("=")
        if not (apis and header and value):
            # The value is not shown: it may contain the secret in a wrong place.
            raise PyTritonValidationError(
                f"--{flag} option format is '<{noun}>[,<{noun}>...]:<header>=<value>'"
            )
        group = RestrictedGroup(apis=tuple(apis.split(",")), header=header, value=value)
        for api in group.apis:
            if api not in VALID_TRITON_ENDPOINTS:
                raise PyTritonValidationError(f"unknown restricted {noun} '{api}' ")
            if api in seen:
                raise PyTritonValidationError(
                    f"restricted {noun} '{api}' can not be specified in multiple config groups"
                )
            seen.add(api)
        groups.append(group)
    return tuple(groups)


def required_headers(
    groups: Iterable[RestrictedGroup], protocol: RestrictedProtocol, own_key: str = ""
) -> dict[str, str]:
    """Returns the headers that open all APIs; a name counts with its first value.

    `own_key` is that of processes of the server's user, if there is a policy.
    """
    _, _, _, prefix = protocol.value
    headers: dict[str, str] = {OWN_KEY_HEADER: own_key} if own_key else {}
    for group in groups:
        headers.setdefault(f"{prefix}{group.header}".lower(), group.value)
    return headers


class Authorization:
    """The APIs that require a header; checks whether a request has the right value."""

    def __init__(
        self,
        groups: Iterable[RestrictedGroup],
        protocol: RestrictedProtocol,
        *,
        recording_token: str = "",
        access: AccessControl | None = None,
    ) -> None:
        _, _, noun, prefix = protocol.value
        self.access = access  # None: there is no policy
        self._requirements: dict[str, tuple[bytes, bytes, str]] = {}
        for group in groups:
            header = prefix + group.header
            refusal = f"This {noun} is restricted, expecting header '{header}'"
            # Header names are case-insensitive, and HTTP/2 has only lower-case ones.
            requirement = (header.lower().encode(), group.value.encode(), refusal)
            self._requirements.update(dict.fromkeys(group.apis, requirement))
        if recording_token:
            refusal = f"This {noun} is restricted, expecting header '{TRITON_ACCESS_HEADER}'"
            requirement = (TRITON_ACCESS_HEADER.encode(), recording_token.encode(), refusal)
            self._requirements[RECORDING] = requirement

    def decide(
        self,
        api: str,
        model: str | Scope,
        header: HeaderLookup,
        client: Client,
        *,
        accepts_bearer: bool = False,
        is_counted: bool = True,
    ) -> Grant | Denial | None:
        """Decide on a request: the one place, for all routes and methods of all ports.

        Args:
            api: the group of the request; empty: it is open to all, as are files of pages.
            model: the model that it names, or how rights to models apply without one.
            header: returns the values of its headers.
            client: its connection.
            accepts_bearer: see `refusal`.
            is_counted: False if the same request is decided on again later.

        Returns:
            Its sender, which is None without a policy; else why it is refused.
        """
        access = self.access
        if access is None or not api:
            message = self.refusal(api, header, accepts_bearer=accepts_bearer)
            return None if message is None else _restricted(message)
        found = access.identify(header, client, is_counted=is_counted)
        if isinstance(found, Denial):
            return found
        denial = access.refusal(found, api, model, is_counted=is_counted)
        if denial is not None:
            return denial
        # The right to recordings is explicit, so it needs no token besides.
        message = None
        if api != RECORDING:
            message = self.refusal(api, header, accepts_bearer=accepts_bearer)
        return found if message is None else access.counted(_restricted(message, found))

    def refusal(
        self, api: str, header: HeaderLookup, *, accepts_bearer: bool = False
    ) -> str | None:
        """Returns the error message for a request without the header of a restricted API.

        With `accepts_bearer` the value may also be a bearer token, as some clients can send no
        other header.
        """
        requirement = self._requirements.get(api)
        if requirement is None:
            return _CLOSED if api == RECORDING else None
        name, expected, refusal = requirement
        value = header(name)
        # Compared in constant time, so that the value cannot be guessed letter by letter.
        if value is not None and hmac.compare_digest(value, expected):
            return None
        if accepts_bearer:
            scheme, _, token = (header(b"authorization") or b"").partition(b" ")
            if scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), expected):
                return None
        return refusal

    def __repr__(self) -> str:
        return f"<Authorization for {', '.join(sorted(self._requirements)) or 'nothing'}>"


def _restricted(message: str, grant: Grant | None = None) -> Denial:
    return Denial(Reason.RESTRICTED, message, HTTP_RESTRICTED, GRPC_RESTRICTED, b"", grant)
