# SPDX-License-Identifier: Apache-2.0
"""The words of decisions on requests, which also servers without a policy need."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from pytriton.serving.server.access.control import Grant, Principal

T = TypeVar("T")
# Returns the value of a header by its lower-case name; None if the request has none.
HeaderLookup = Callable[[bytes], bytes | None]

OWN_KEY_HEADER = "pytriton-own-key"  # of processes of the user who runs the server
UNLOADS_OTHERS = "expected no unload_dependents, as it may unload models without a right to them"


class Scope(enum.Enum):
    """How rights to models apply to a request whose head names none."""

    ALL = "its answer tells of all models, or it changes all: it needs the right to all"
    FILTERED = "its answer leaves out models that its sender has no right to"
    BY_BODY = "its body names the model, which is decided on when that is read"
    NONE = "it is about no model"


class Reason(enum.Enum):
    """Why a request is refused: labels of a metric, so there are few of them."""

    MISSING = "missing"
    MALFORMED = "malformed"
    UNKNOWN_KEY = "unknown_key"
    REVOKED = "revoked"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    FOREIGN = "foreign"  # of an issuer or for an audience that the policy does not name
    BAD_SIGNATURE = "bad_signature"
    ALGORITHM = "algorithm"
    UNKNOWN_SUBJECT = "unknown_subject"
    UNKNOWN_PRINCIPAL = "unknown_principal"
    KEYS_UNAVAILABLE = "keys_unavailable"  # of an issuer that could not be asked yet
    THROTTLED = "throttled"
    SIGNATURE_LIMIT = "signature_limit"  # too many tokens with wrong signatures came, of whomever
    FORBIDDEN_API = "forbidden_api"
    FORBIDDEN_MODEL = "forbidden_model"
    RESTRICTED = "restricted"  # it lacks the header of a restricted API


class Denial(NamedTuple):
    """The answer to a request that may not do what it asks for."""

    reason: Reason
    message: str
    http_status: int
    grpc_status: int
    headers: bytes = b""  # lines of an HTTP answer
    grant: Grant | None = None  # who it was, if that is known
    retry_after_s: int = 0  # 0: it does not help to try again


class Client(Protocol):
    """A connection, as far as it tells who is at its other end."""

    peer: Any  # a `Peer`, which is read once; None before

    def get_extra_info(self, name: str) -> Any:
        """Returns a fact about its transport; None if it is not known."""


def visible(grant: Grant | None, items: Iterable[T], name_of: Callable[[T], str]) -> list[T]:
    """Returns the items whose models a sender may use; without a policy, that is all."""
    if grant is None or grant.principal.sees_all:
        return list(items)
    return [item for item in items if grant.principal.may_use(name_of(item))]


def patterns_of(principal: Principal | None) -> tuple[str, ...] | None:
    """Returns the patterns of the models that a sender has a right to; None: all models."""
    return None if principal is None or principal.sees_all else principal.patterns


def sees_all(grant: Grant | None) -> bool:
    """Returns whether a sender may know of all models, which all do without a policy."""
    return grant is None or grant.principal.sees_all
