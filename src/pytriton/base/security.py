# SPDX-License-Identifier: Apache-2.0
"""Which endpoints of a server require an access token, and random tokens."""

from __future__ import annotations

import base64
import dataclasses
import os

from pytriton.exceptions import PyTritonValidationError

TRITON_ACCESS_HEADER = "triton-access-token"
TOKEN_VARIABLE = "TRITON_ACCESS_TOKEN"  # noqa: S105  the variable where commands find it
API_KEY_HEADER = "x-api-key"  # of a key that a policy knows
API_KEY_VARIABLE = "PYTRITON_API_KEY"

VALID_TRITON_ENDPOINTS = {
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
}

DEFAULT_PROTECTED_ENDPOINTS = [
    "shared-memory",
    "model-repository",
    "statistics",
    "trace",
    "logging",
]

_TOKEN_BYTES = 32


@dataclasses.dataclass
class TritonSecurityConfig:
    """Which endpoints answer only requests with the access token.

    Args:
        access_token: the expected token; if endpoints are restricted and none is given, a random
            one is made.
        restricted_endpoints: names in `VALID_TRITON_ENDPOINTS`. None restricts
            `DEFAULT_PROTECTED_ENDPOINTS`, an empty list restricts nothing.

    Raises:
        PyTritonValidationError: for names of endpoints that do not exist, or an empty token.
    """

    access_token: str | None = dataclasses.field(default=None, repr=False)
    restricted_endpoints: list[str] | None = None

    def __post_init__(self) -> None:
        if self.restricted_endpoints is None:
            self.restricted_endpoints = list(DEFAULT_PROTECTED_ENDPOINTS)
        unknown = sorted(set(self.restricted_endpoints) - VALID_TRITON_ENDPOINTS)
        if unknown:
            raise PyTritonValidationError(
                f"Invalid endpoint names: {', '.join(unknown)}. "
                f"Valid endpoints are: {', '.join(sorted(VALID_TRITON_ENDPOINTS))}"
            )
        if not self.restricted_endpoints:
            return
        if self.access_token is None:
            self.access_token = random_token()
        elif not self.access_token:
            raise PyTritonValidationError("Expected a non-empty access token, got an empty string")

    def restrictions(self, own: str | None = None) -> list[str]:
        """Returns the groups of restricted endpoints in the form of the server's options.

        `own` is the group of a user, `<APIs>:<key>=<value>`. It decides about its endpoints.
        """
        groups = [own] if own else []
        decided = own.partition(":")[0].split(",") if own else []
        endpoints = [name for name in self.restricted_endpoints or [] if name not in decided]
        if endpoints:
            groups.append(f"{','.join(endpoints)}:{TRITON_ACCESS_HEADER}={self.access_token}")
        return groups


def random_token() -> str:
    """Returns a token that a command takes as a value: with a dash first, it reads as an option."""
    # As `secrets` does it, but that imports OpenSSL's hash functions, which takes 3 MiB.
    token = base64.urlsafe_b64encode(os.urandom(_TOKEN_BYTES)).rstrip(b"=").decode("ascii")
    return random_token() if token.startswith("-") else token
