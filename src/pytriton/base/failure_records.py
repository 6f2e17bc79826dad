# SPDX-License-Identifier: Apache-2.0
"""The records of requests that failed or were refused: where an error comes from, and groups.

Processes send them to one another. What is grouped, and how much is kept, is decided in
`pytriton.serving.engine.failures`.
"""
# Annotations are no strings here: msgspec would compile them, which takes half of their import.

import math
import time

import msgspec

from pytriton.base.errors import ServerError, sendable_text
from pytriton.base.failure_log import message_of
from pytriton.base.user_frames import UserFrame, own_frame, short_traceback


class FailureOrigin(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where an exception of a model comes from; clients never see it."""

    kind: str  # the name of its class
    place: str = ""  # the user's innermost own frame as `file:line function`; "" if there is none
    traceback: str = ""  # shortened
    told: str = ""  # what the exception says to clients on purpose, also if they get no others


def origin_of(error: BaseException, default: UserFrame | None = None) -> FailureOrigin:
    """Returns where an exception that a model raised comes from; an error of ours may know it.

    `default` is the place if no code of the user was running, such as the function whose answer is
    wrong.
    """
    if isinstance(error, ServerError):
        return error.origin or FailureOrigin(error.kind)
    frame = own_frame(error) or default
    place = "" if frame is None else f"{frame.file}:{frame.line} {frame.function}"
    kind = type(error).__name__
    text = short_traceback(error) if _is_traceback_due(kind, place) else ""
    told = message_of(error) if getattr(error, "is_for_clients", False) else ""
    return FailureOrigin(sendable_text(kind), sendable_text(place), text, sendable_text(told))


_TRACEBACK_EVERY_S = 0.1
_MAX_PLACES = 64
_written_s: dict[tuple[str, str], float] = {}  # when each place had its last traceback


def _is_traceback_due(kind: str, place: str) -> bool:
    """Returns whether to make a traceback, which takes 100 us: not for each of many failures."""
    now_s = time.monotonic()
    if now_s - _written_s.get((kind, place), -math.inf) < _TRACEBACK_EVERY_S:
        return False
    if len(_written_s) >= _MAX_PLACES:
        _written_s.clear()
    _written_s[kind, place] = now_s
    return True


class FailedInput(msgspec.Struct, array_like=True, gc=False):
    """An input of a failed request, without its contents."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class FailureExample(msgspec.Struct, array_like=True):
    """One failed request of a group."""

    time_s: float  # since the epoch
    model: str  # as the client wrote it
    request_id: str
    message: str  # as the client got it, maybe cut
    traceback: str = ""
    inputs: list[FailedInput] = []
    more_inputs: int = 0  # those that are not listed


class FailureGroup(msgspec.Struct, array_like=True):
    """Failures of one model version that have the same kind and place."""

    model: str  # its identifier; "" for requests that reached no model
    version: int  # 0 if there is no model
    kind: str  # the class of an exception, or Triton's name of the kind of error
    place: str  # a frame of the user, or the message without what differs from request to request
    reason: str  # a `FailureReason`, or REFUSED if no model has seen the requests
    count: int
    first_s: float  # since the epoch
    last_s: float
    example: FailureExample  # one of the newest
