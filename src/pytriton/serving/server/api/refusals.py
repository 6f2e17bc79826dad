# SPDX-License-Identifier: Apache-2.0
"""Notes requests for inference that a front end refuses before the engine gets them.

The errors here are for the list of failures; what clients are told is decided where they are
refused. Nothing that a header says is noted: it may be a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytriton.base.errors import InvalidArgumentError, ServerError
from pytriton.serving.engine.failures import normalised

if TYPE_CHECKING:
    from pytriton.serving.engine.client import EngineClient

INFERENCE = "inference"  # the group of APIs whose requests are noted


class Refusal(NamedTuple):
    """The answer to a request that nothing answers, or that may not do what it asks for."""

    status: int
    message: str
    headers: bytes = b""  # lines


class ForbiddenError(InvalidArgumentError):
    """A request without the header that a restricted API needs, or of a page of another site."""

    kind = "Forbidden"


class TooLargeError(InvalidArgumentError):
    """A request with more bytes than the server accepts."""

    kind = "Too large"


def note_forbidden(engine: EngineClient, message: str, name: str = "", version: str = "") -> None:
    """Note a request without authorisation; gRPC refuses it before its model is known."""
    engine.report_refusal(name, version, "", ForbiddenError(message))


def note_unread(
    engine: EngineClient, kind: type[ServerError], message: str, name: str = "", version: str = ""
) -> None:
    """Note a request whose body was not read to its end."""
    # Sizes are worth to be known; other messages may quote headers.
    text = message if kind is TooLargeError else normalised(message)
    engine.report_refusal(name, version, "", kind(text))
