# SPDX-License-Identifier: Apache-2.0
"""Why a server gave no answer, in words for the person at the terminal."""

from __future__ import annotations

import re

from pytriton.base.security import TRITON_ACCESS_HEADER

_RESTRICTED = re.compile(r"restricted, expecting header '([^']+)'")
_GRPC_PREFIX = "triton-grpc-protocol-"  # of metadata that restricts gRPC
_UNKNOWN_MODEL = re.compile(r"unknown model|not found|no such model|does not exist", re.IGNORECASE)
_DECOUPLED = re.compile(r"decoupled transaction policy", re.IGNORECASE)


class AskError(Exception):
    """A server gave no answer; the text is one or two plain sentences."""


class NoServerError(AskError):
    """Nothing that speaks the protocol answers at the address, or it did not answer in time."""


class RestrictedError(AskError):
    """The server answers this only to requests with a certain header.

    Args:
        text: the sentences.
        needed: what a request needs, with the option that gives it.
    """

    def __init__(self, text: str, needed: str = "the access token (--token)") -> None:
        super().__init__(text)
        self.needed = needed


class RefusedError(AskError):
    """The server answered with an error; the text is the server's."""

    @property
    def is_unknown_model(self) -> bool:
        """Whether the server says that it has no such model."""
        return bool(_UNKNOWN_MODEL.search(str(self)))

    @property
    def is_for_streams_only(self) -> bool:
        """Whether the server says that the model needs a stream."""
        return bool(_DECOUPLED.search(str(self)))


def refusal(text: str) -> AskError:
    """Returns the error for what a server said."""
    match = _RESTRICTED.search(text)
    if match is None:
        return RefusedError(text)
    name = match.group(1)
    if name.removeprefix(_GRPC_PREFIX) == TRITON_ACCESS_HEADER:
        how = "give the right one with --token or in the variable TRITON_ACCESS_TOKEN"
        return RestrictedError(f"The server answers this only with its access token: {how}.")
    return RestrictedError(
        f"The server answers this only with the header '{name}': give it with -H {name}:VALUE.",
        f"the header '{name}' (-H {name}:VALUE)",
    )
