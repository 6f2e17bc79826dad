# SPDX-License-Identifier: Apache-2.0
"""What clients get in place of exceptions of models, and what the log says of these.

Instances of all kinds mark what their model has raised with a `FailureOrigin`. What a model answers
on purpose has none, and neither have errors of the server.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from typing import TYPE_CHECKING

from pytriton.base.errors import ErrorCode, ServerError
from pytriton.base.failure_log import Failure, RepeatedFailures
from pytriton.base.request_ids import request_ids
from pytriton.serving.engine.failures import MAX_TRACEBACK_CHARS, cut, normalised

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.base.model_spec import ModelSpec

logger = logging.getLogger(__name__)

# Errors of other kinds say what was wrong with the request, or that it may be tried again.
_UNEXPECTED = (ErrorCode.INTERNAL, ErrorCode.UNKNOWN)
_MAX_LINE_CHARS = 300


class HiddenExceptions:
    """Replaces texts of exceptions by a number, under which the log has them.

    Exceptions of the same place have the same number. The log has the first of them whole, and then
    from time to time the newest with a count, because clients decide how many there are.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = os.urandom(16)  # nobody finds out the place of a number by trying
        self._repeated = RepeatedFailures()

    def shown(self, spec: ModelSpec, error: ServerError, ids: Sequence[str]) -> ServerError:
        """Returns what clients get of an error that a model has raised for requests with `ids`."""
        origin = error.origin
        if origin is None or error.code not in _UNEXPECTED:
            return error
        text = origin.told
        if not text:
            place = origin.place or normalised(error.message)
            place_key = (spec.identifier, str(spec.version), origin.kind, place)
            number = self._number(place_key)
            self._log(number, place_key, spec, error, ids)
            text = f"model '{spec.name}' failed; the server's log says why (failure {number})"
        shown = type(error)(text)
        shown.origin = origin
        return shown

    def _number(self, place_key: tuple[str, ...]) -> str:
        place = "\0".join(place_key).encode("utf-8", "surrogatepass")
        return hashlib.blake2s(place, key=self._key, digest_size=4).hexdigest()

    def _log(
        self,
        number: str,
        place_key: tuple[str, ...],
        spec: ModelSpec,
        error: ServerError,
        ids: Sequence[str],
    ) -> None:
        now_s = self._clock()
        subject = f"failure {number} of model '{spec.identifier}' version {spec.version}"
        first_line = error.message.partition("\n")[0][:_MAX_LINE_CHARS]
        failure = Failure(f"{subject}: {first_line}", None, None)
        new = self._repeated.count(place_key, failure, now_s)
        for repeated in self._repeated.due(now_s):
            logger.error("%s", repeated.text)
        if new is None:
            return
        text = f"{subject}: {cut(error.message, MAX_TRACEBACK_CHARS)}"
        with request_ids({place: each for place, each in enumerate(ids) if each}):
            line = logger.makeRecord(logger.name, logging.ERROR, __file__, 0, "%s", (text,), None)
        if error.origin is not None and error.origin.traceback:
            line.exc_text = error.origin.traceback  # formatters write it below the line
        logger.handle(line)
