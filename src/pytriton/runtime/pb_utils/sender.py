# SPDX-License-Identifier: Apache-2.0
"""Sends responses that a model does not return from `execute`."""

from __future__ import annotations

import threading

from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.runtime import RequestContext

FINAL = 1  # TRITONSERVER_RESPONSE_COMPLETE_FINAL
_UNABLE = "Unable to send response."


class InferenceResponseSender:
    """Sends the responses to one request, from any thread and also after `execute` returned.

    A decoupled model sends any number of responses, any other model exactly one. The last response
    must have the flag `TRITONSERVER_RESPONSE_COMPLETE_FINAL`, or the flag must be sent alone after
    it. Senders come from `InferenceRequest.get_response_sender`.
    """

    __slots__ = (
        "__weakref__", "_context", "_has_sent", "_held", "_is_closed", "_is_decoupled", "_order",
    )  # fmt: skip

    def __init__(self, context: RequestContext, is_decoupled: bool) -> None:
        self._context = context
        self._is_decoupled = is_decoupled
        self._is_closed = False
        self._has_sent = False
        # A model that is not decoupled may send its final flag after its response; the server
        # expects both together.
        self._held: InferenceResponse | None = None
        self._order = threading.Lock()  # keeps responses in the order of the calls

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, the final flag, or both; waits until the server accepts it.

        Args:
            response: The response; may be None if the flag is set.
            flags: `TRITONSERVER_RESPONSE_COMPLETE_FINAL` with the last response or after it.

        Raises:
            TypeError: `response` is not an InferenceResponse, or `flags` is not an int.
            TritonModelException: The final flag was sent already, a model that is not decoupled
                sends a second response or none, or both flag and response are missing.
        """
        if flags not in (0, FINAL):
            _refuse_flags(flags)
        if response is None:
            if not flags:
                raise TritonModelException(
                    "Inference Response object must be provided when the response flags is set"
                    " to zero."
                )
        elif not isinstance(response, InferenceResponse):
            raise TypeError(f"response must be an InferenceResponse, got {type(response)}")
        with self._order:
            if self._is_decoupled:
                self._send_decoupled(response, is_final=flags == FINAL)
            else:
                self._send_single(response, is_final=flags == FINAL)

    def is_cancelled(self) -> bool:
        """Returns whether the request was cancelled; a final response is still required."""
        return self._context.is_cancelled()

    @property
    def is_closed(self) -> bool:
        """Whether the final flag was sent, or `execute` failed."""
        return self._is_closed

    def mark_closed(self) -> None:
        """Make later sends fail, because the request was answered otherwise. Not for models."""
        self._is_closed = True

    def take_held(self) -> InferenceResponse | None:
        """Remove and return the response that waits for its final flag."""
        held, self._held = self._held, None
        return held

    def count_returned(self) -> None:
        """Count the response that `execute` returned as sent with the final flag.

        Raises:
            TritonModelException: For the same reasons as in `send`.
        """
        self._check_first()
        self._has_sent = self._is_closed = True

    def _send_decoupled(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        self._check_open()
        self._is_closed = is_final
        self._context.send(response, is_final=is_final)

    def _send_single(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        if response is not None:
            self._check_first()
            self._has_sent = True
            self._held = response
        else:
            self._check_open()
            if not self._has_sent:
                raise TritonModelException(
                    f"{_UNABLE} Non-decoupled model cannot send complete final before sending a"
                    " response."
                )
        if is_final:
            self._is_closed = True
            self._context.send(self.take_held(), is_final=True)

    def _check_first(self) -> None:
        if self._has_sent:
            raise TritonModelException(
                f"{_UNABLE} Non-decoupled model cannot send more than one response."
            )
        self._check_open()

    def _check_open(self) -> None:
        if self._is_closed:
            raise TritonModelException(f"{_UNABLE} Response sender has been closed.")


def _refuse_flags(flags: object) -> None:
    if not isinstance(flags, int):
        raise TypeError(f"flags must be an int, got {type(flags)}")
    raise TritonModelException(f"{_UNABLE} Unsupported flag provided.")
