# SPDX-License-Identifier: Apache-2.0
"""Verbose lines about a request: what it brings, and how it ends."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pytriton.base.request_ids import request_ids

if TYPE_CHECKING:
    from pytriton.base.errors import ServerError
    from pytriton.base.messages import InferRequest, InferResponse, ResponseSink

logger = logging.getLogger(__name__)

_monotonic_ns = time.monotonic_ns


def log_tensors(request: InferRequest) -> None:
    """Log what a request brings and asks for."""
    inputs = ", ".join(
        f"{tensor.name} {tensor.dtype.name} {list(tensor.shape)}"
        for tensor in request.inputs.values()
    )
    outputs = "all outputs" if request.outputs is None else ", ".join(request.outputs)
    _log(request, "request for model '%s' with %s, for %s", request.model_name, inputs, outputs)


class LoggedRequest:
    """A sink that passes everything on, and logs the end."""

    __slots__ = ("_begun_ns", "_request", "_response_count", "_sink")

    def __init__(self, request: InferRequest, sink: ResponseSink) -> None:
        self._request = request
        self._sink = sink
        self._response_count = 0
        self._begun_ns = _monotonic_ns()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        self._sink.on_response(response, final=final)
        self._response_count += response is not None
        if final:
            self._log_end(f"was answered with {self._response_count} response(s)")

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        self._sink.on_error(error, final=final)
        if final:
            self._log_end(f"failed: {error.message}" if error.message else "was cancelled")

    def on_refused(self, error: ServerError) -> None:
        self._sink.on_refused(error)
        self._log_end(f"was refused: {error.message}")

    def _log_end(self, how: str) -> None:
        took_us = (_monotonic_ns() - self._begun_ns) // 1000
        name = self._request.model_name
        _log(self._request, "request for model '%s' took %d us and %s", name, took_us, how)


def _log(request: InferRequest, text: str, *arguments: object) -> None:
    with request_ids({0: request.id} if request.id else {}):
        logger.debug(text, *arguments)
